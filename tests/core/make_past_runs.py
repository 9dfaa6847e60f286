"""Makes the specimens of tests/core/past_runs: what real frameworks leave behind of a run.

    python tests/core/make_past_runs.py trl      # in TRL's environment, with wandb
    python tests/core/make_past_runs.py verl     # in verl's

Each is run or composed by the framework itself on a CPU, and cut to what is read: no weights, and nothing that names a
person or a machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "past_runs"
OVERRIDES = [
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=64",
    "data.train_files=train.parquet",
    "data.val_files=val.parquet",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=4",
    "trainer.nnodes=2",
    "trainer.total_epochs=3",
]


def of_trl() -> None:
    """A run of TRL's `GRPOTrainer` of two steps: W&B's folder, a checkpoint, and its log."""
    there = Path(tempfile.mkdtemp(prefix="bb-past-"))
    os.environ |= {
        "ACCELERATE_USE_CPU": "true",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(there),
        "WANDB_SILENT": "true",
    }
    import logging

    import transformers
    import wandb
    from wandb.sdk.lib.config_util import save_config_file_from_dict

    from batchbridge_trl.testing import scripted_trainer

    transformers.utils.logging.set_verbosity_info()
    log = there / "run.log"
    handler = logging.FileHandler(log)
    logging.getLogger("transformers").addHandler(handler)
    options = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    more = {"report_to": ["wandb"], "save_strategy": "steps", "save_steps": 2, "max_steps": 2, "logging_steps": 1}
    os.chdir(there)
    trainer = scripted_trainer(Path("out"), **options, **more)
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train()
        logged = wandb.run.config.as_dict()
        wandb.finish()
    made = FOLDER / "trl"
    shutil.rmtree(made, ignore_errors=True)
    (made / "checkpoint-2").mkdir(parents=True)
    for name in ("training_args.bin", "trainer_state.json"):
        shutil.copy(there / "out" / "checkpoint-2" / name, made / "checkpoint-2" / name)
    (run,) = (there / "wandb").glob("*run-*/files")
    files = made / "wandb" / "run-20261128_120000-abcd1234" / "files"
    files.mkdir(parents=True)

    held = {key: {"desc": None, "value": value} for key, value in logged.items()}
    save_config_file_from_dict(str(run / "config.yaml"), held)
    for name in ("config.yaml", "requirements.txt"):
        text = (run / name).read_text(encoding="utf-8").replace(str(there), "/there")
        (files / name).write_text(text, encoding="utf-8")
    lines = log.read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(lines) if "Running training" in line)
    (made / "run.log").write_text("\n".join(lines[start : start + 8]) + "\n", encoding="utf-8")


def of_verl() -> None:
    """What Hydra writes of a composed configuration, and what verl's driver prints of it."""
    from pprint import pformat

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    made = FOLDER / "verl"
    shutil.rmtree(made, ignore_errors=True)
    written = made / "outputs" / "2026-11-28" / "12-00-00"
    written.parent.mkdir(parents=True)
    printed: list[str] = []

    @hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
    def main_ppo(config: object) -> None:
        assert HydraConfig.initialized()
        printed.append(pformat(OmegaConf.to_container(config, resolve=True)))  # type: ignore[arg-type]

    sys.argv = ["main_ppo.py", *OVERRIDES, f"hydra.run.dir={written}", "hydra.job.name=main_ppo"]
    main_ppo()
    for file in written.glob("*.log"):
        file.unlink()
    folder = written / ".hydra"
    for file in folder.iterdir():
        text = re.sub(r"(/[\w.@-]+)+", lambda found: _short(found[0]), file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")
    lines = [f"(TaskRunner pid=4242) {line}" for line in printed[0].splitlines()]
    noise = "(WorkerDict pid=4243) a line of another process"
    lines[20:20] = [noise]
    log = ["2026-11-28 12:00:00,000\tINFO worker.py:1843 -- Started a local Ray instance.", *lines]
    (made / "job.log").write_text("\n".join(log) + "\n", encoding="utf-8")
    errors = [
        f"Error executing job with overrides: {OVERRIDES!r}",
        "Traceback (most recent call last):",
        '  File "/there/verl/trainer/main_ppo.py", line 42, in main',
        "AssertionError: only support equal chunk. Got size of DataProto 256 and chunk 6.",
    ]
    (made / "error.log").write_text("\n".join(errors) + "\n", encoding="utf-8")


def _short(path: str) -> str:
    """A path of this machine, as nobody's."""
    home = (str(FOLDER), sys.prefix, tempfile.gettempdir(), str(Path.cwd()))
    return f"/there/{Path(path).name}" if path.startswith(home) else path


if __name__ == "__main__":
    of_trl() if sys.argv[1:] == ["trl"] else of_verl()
