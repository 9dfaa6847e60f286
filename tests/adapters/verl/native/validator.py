"""verl's own verdicts on random configurations: its `validate_config` with the dataclasses that it builds, real code.

In an environment with verl: `python tests/adapters/verl/native/validator.py COUNT >> validator_verdicts.jsonl` writes
COUNT verdicts of the installed version, one per line, for the tests that have no verl; the same ones every time
(seeded). Recorded were 0.4.1 to 0.7.1 beside transformers 4.57.6, torchdata 0.11.0 and setuptools 79, 0.8.0 beside the
packages of `constraints/verl.txt`. In 0.4.0 to 0.5.0 the validator is a method of RayPPOTrainer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchbridge_verl.settings import BY_KEY

ACTOR, ROLLOUT, REFERENCE = (f"actor_rollout_ref.{name}." for name in ("actor", "rollout", "ref"))
SEED = 20261121

CODES = (
    # (what verl says, the rule of ours that says so too)
    (r"ZeroDivisionError", None),  # 010, or 015 and 060 where the deprecated size is 0: see `code_of`
    (r"n_gpus \(.*\) must be divisible by model_parallel_size", "BB-VERL-017"),
    (r"unsupported operand type\(s\) for \*: 'int' and 'NoneType'", "BB-VERL-013"),
    (r"real_train_batch_size \(.*\) must be divisible by minimal possible", "BB-VERL-004"),
    (r"FSDPOptimizerConfig'?:\\nAssertionError", "BB-VERL-057"),
    (r"Invalid router_replay mode", "BB-VERL-066"),
    (r"dtype .* not supported", "BB-VERL-058"),
    (r"\[actor(_rollout_ref\.actor)?\] You have set both", "BB-VERL-014"),
    (r"\[actor(_rollout_ref\.actor)?\] Please set at least one", "BB-VERL-013"),
    (r"Invalid loss_agg_mode", "BB-VERL-024"),
    (r"must be >= actor\.ppo_mini_batch_size", "BB-VERL-012"),
    (r"\[critic\] ppo_mini_batch_size", "BB-VERL-060"),
    (r"critic\.ppo_micro_batch_size \(", "BB-VERL-060"),
    (r"must be >= critic\.ppo_mini_batch_size", "BB-VERL-062"),
    (r"ppo_micro_batch_size \(", "BB-VERL-015"),
    (r"sequence parallelism for actor/ref policy", "BB-VERL-051"),
    (r"sequence parallelism for critic", "BB-VERL-061"),
    (r"router_replay\.mode='R2' requires", "BB-VERL-066"),
    (r"\[actor_rollout_ref\.ref\]", "BB-VERL-018"),
    (r"\[actor_rollout_ref\.rollout\]", "BB-VERL-016"),
    (r"\[reward_model\]", "BB-VERL-064"),
    (r"\[critic\] (You have set both|Please set at least one)", "BB-VERL-059"),
    (r"validation gen temperature should be greater", "BB-VERL-063"),
    (r"must be set when enabling multi_turn|only GRPO is tested for multi-turn", "BB-VERL-065"),
)
ASSERTIONS = {
    # 0.4.0 to 0.5.0 assert without a message: the line's own words
    "train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size": "BB-VERL-012",
    "actor.ppo_mini_batch_size % config": "BB-VERL-015",
    "% config.actor_rollout_ref.actor.ppo_micro_batch_size": "BB-VERL-015",
    "actor.ppo_micro_batch_size * sp_size >= n_gpus": "BB-VERL-015",
    "train_batch_size >= config.critic.ppo_mini_batch_size": "BB-VERL-062",
    "critic.ppo_mini_batch_size % config.critic.ppo_micro_batch_size": "BB-VERL-060",
    "critic.ppo_micro_batch_size * sp_size >= n_gpus": "BB-VERL-060",
}


def configurations(count: int, known: Mapping[str, Any], seed: int = SEED) -> Iterator[dict[str, Any]]:
    """Random settings near the boundaries of the rules; keys that the version (`known`) lacks are left out.

    `model_engine` stands for the engine in every version.
    """
    draw = random.Random(seed)
    for _ in range(count):
        values = _configuration(draw)
        yield {key: value for key, value in values.items() if key in known[values["model_engine"]] or "." not in key}


def _configuration(draw: random.Random) -> dict[str, Any]:
    """Sizes that fit most of the time, and up to a few settings that may break a rule: else the first checks hide the
    later ones."""

    def rarely(value: Any, otherwise: Any, share: float = 0.015) -> Any:
        return value if draw.random() < share else otherwise

    engine = draw.choice(["fsdp", "fsdp", "megatron"])
    nodes, gpus = draw.choice([1, 1, 1, 2, 3]), rarely(0, draw.choice([1, 2, 2, 4, 4, 6, 8]))
    world = nodes * gpus
    group = rarely(0, draw.choice([1, 2, 3, 4, 4, 5, 8]))
    mini = rarely(0, draw.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64]))
    fits = [mini * max(world, 1), 2 * mini * max(world, 1)]
    prompts = rarely(draw.choice([mini - 1, mini, mini + 1, 2 * mini, 3 * mini, world]), draw.choice(fits), 0.4)
    half = max(mini // 2, 1)
    deprecated = [0, 1, half, half, mini, mini, world, world - 1, world + 1]
    values: dict[str, Any] = {
        "model_engine": engine,
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": gpus,
        "trainer.use_v1": draw.random() < 0.5,
        "trainer.balance_batch": draw.random() < 0.5,
        "data.train_batch_size": prompts,
        f"{ROLLOUT}name": "vllm",
        f"{ROLLOUT}n": group,
        f"{ACTOR}ppo_mini_batch_size": mini,
        f"{ACTOR}ppo_epochs": rarely(0, draw.choice([1, 1, 2])),
        f"{ACTOR}use_dynamic_bsz": draw.random() < 0.25,
        f"{ACTOR}use_kl_loss": draw.random() < 0.3,
        "algorithm.use_kl_in_reward": draw.random() < 0.2,
        "algorithm.adv_estimator": draw.choice(["grpo", "grpo", "gae", "gae", "gae", "rloo", "reinforce_plus_plus"]),
        f"{ROLLOUT}multi_turn.enable": draw.random() < 0.1,
    }
    values |= _micro_batches(draw, f"{ACTOR}ppo_micro_batch_size", [0, 1, 1, 1, 1, 1, 2, 2, 3, 4], deprecated)
    values |= _micro_batches(draw, f"{ROLLOUT}log_prob_micro_batch_size", [1, 2], [4, 8])
    values |= _micro_batches(draw, f"{REFERENCE}log_prob_micro_batch_size", [1, 2], [4, 8])
    values |= _micro_batches(draw, "critic.ppo_micro_batch_size", [1, 2], deprecated)
    values |= {
        # Each of these is left at verl's default most of the time.
        key: value
        for key, value, share in (
            (f"{ACTOR}loss_agg_mode", draw.choice(["seq-mean-token-mean", "token-sum", "token-average"]), 0.1),
            (f"{ACTOR}optim.lr_scheduler_type", draw.choice(["cosine", "cosine", "linear"]), 0.1),
            (f"{ACTOR}optim.warmup_style", draw.choice(["constant", "cosine", "cosine", "linear"]), 0.1),
            (f"{ACTOR}ulysses_sequence_parallel_size", draw.choice([0, 2, 2, 3, 4]), 0.3),
            (f"{ACTOR}strategy", draw.choice(["fsdp", "fsdp2"]) if engine == "fsdp" else "megatron", 0.3),
            ("actor_rollout_ref.model.use_remove_padding", draw.random() < 0.7, 0.3),
            (f"{ACTOR}megatron.tensor_model_parallel_size", draw.choice([0, 1, 1, 2, 2, 2, 3, 4]), 0.2),
            (f"{ACTOR}megatron.pipeline_model_parallel_size", draw.choice([1, 2, 2, 3]), 0.2),
            (f"{ACTOR}megatron.context_parallel_size", draw.choice([1, 2, 2, 4]), 0.2),
            (f"{ACTOR}megatron.dtype", draw.choice(["float16", "float16", "float32"]), 0.1),
            (f"{ACTOR}megatron.router_replay.mode", draw.choice(["R2", "R2", "R2", "R3", "R4"]), 0.15),
            ("algorithm.rollout_correction.bypass_mode", True, 0.3),
            ("critic.enable", draw.random() < 0.5, 0.2),
            ("critic.ppo_mini_batch_size", draw.choice([1, half, mini, mini, prompts, prompts + 1]), 0.3),
            ("critic.use_dynamic_bsz", draw.random() < 0.5, 0.2),
            ("critic.ulysses_sequence_parallel_size", draw.choice([0, 2, 2, 4]), 0.3),
            ("critic.model.use_remove_padding", draw.random() < 0.5, 0.3),
            ("critic.optim.lr_scheduler_type", draw.choice(["cosine", "linear"]), 0.1),
            ("critic.megatron.dtype", draw.choice(["float16", "float32"]), 0.1),
            ("reward_model.enable", True, 0.2),
            ("reward_model.micro_batch_size_per_gpu", 1, 0.7),
            ("reward_model.micro_batch_size", 4, 0.2),
            ("reward_model.use_reward_loop", draw.random() < 0.5, 0.5),
            ("reward.reward_model.enable", True, 0.2),
            (f"{ROLLOUT}val_kwargs.do_sample", True, 0.4),
            (f"{ROLLOUT}temperature", draw.choice([0.0, 0.7]), 0.3),
            (f"{ROLLOUT}multi_turn.tool_config_path", "tools.yaml", 0.5),
        )
        if draw.random() < share
    }
    return values


def _micro_batches(draw: random.Random, key: str, sizes: list[int], deprecated: list[int]) -> dict[str, Any]:
    """The size per GPU most of the time, else the deprecated global one, both, or neither."""
    which = draw.choices(("per_gpu", "global", "both", "neither"), (80, 10, 4, 6))[0]
    return {
        f"{key}_per_gpu": draw.choice(sizes) if which in ("per_gpu", "both") else None,
        key: draw.choice(deprecated) if which in ("global", "both") else None,
    }


KEPT = ("_target_", "strategy", "rollout_n", "path", "tokenizer_path", "load_tokenizer", "override_config")
"""Settings below actor and critic that the dataclasses need, besides those that our rules read."""


class Validator:
    """verl's validator over one composed configuration per engine, changed in place: composing takes half a second.

    `whole`: with every setting. Otherwise only those that our rules read are said to the actor's and the critic's
    dataclasses, and their own defaults stand for the rest, which halves the time of a verdict.
    """

    def __init__(self, whole: bool = False) -> None:
        warnings.simplefilter("ignore")
        self.whole = whole
        self.version = metadata.version("verl")
        package = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
        self.folder = package / "trainer" / "config"
        self.bases = {engine: self._compose(engine) for engine in ("fsdp", "megatron")}
        self._quicken()

    def _compose(self, engine: str) -> tuple[Any, dict[str, Any]]:
        """The composed configuration, and its leaves as they stand."""
        from hydra import compose, initialize_config_dir
        from omegaconf import OmegaConf

        by_name = not (self.folder / "model_engine" / "megatron.yaml").is_file()  # 0.4.0 to 0.7.1: a file per engine
        name = "ppo_megatron_trainer" if engine == "megatron" and by_name else "ppo_trainer"
        words = [] if by_name or engine == "fsdp" else [f"model_engine={engine}"]
        with initialize_config_dir(str(self.folder), version_base=None):
            config = compose(name, overrides=words)
        for key, value in _model().items():
            if str(config.critic.model.get("_target_")).endswith("HFModelConfig") or key.endswith("path"):
                OmegaConf.update(config, key, value, force_add=True)
        if not self.whole:
            OmegaConf.set_struct(config, False)
            _leave_out(config.actor_rollout_ref.actor, ACTOR)
            _leave_out(config.critic, "critic.")
        return config, dict(_leaves(OmegaConf.to_container(config, resolve=False)))

    @staticmethod
    def _quicken() -> None:
        """Interpolations are parsed once: a third of the time is OmegaConf's parser on the same twenty texts."""
        import omegaconf.base

        omegaconf.base.parse = functools.lru_cache(maxsize=1000)(omegaconf.base.parse)

    @property
    def known(self) -> dict[str, dict[str, Any]]:
        """Every key and its default, by engine."""
        return {engine: leaves for engine, (_, leaves) in self.bases.items()}

    def error(self, values: Mapping[str, Any]) -> str | None:
        """What verl's validator raises; None where it lets the configuration pass."""
        config, leaves = self.bases[values["model_engine"]]
        changes = {key: value for key, value in values.items() if key != "model_engine"}
        try:
            for key, value in changes.items():
                _set(config, key, value)
            with contextlib.redirect_stdout(io.StringIO()):
                self._validate(config)
        except Exception as error:
            return _told(error)
        finally:
            for key in changes:
                _set(config, key, leaves[key])
        return None

    def _validate(self, config: Any) -> None:
        try:
            from verl.utils.config import validate_config
        except ImportError:  # 0.4.0 to 0.5.0
            from verl.trainer.ppo.ray_trainer import RayPPOTrainer

            penalties = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
            critic = config.algorithm.adv_estimator == "gae"
            RayPPOTrainer._validate_config(
                SimpleNamespace(config=config, use_critic=critic, use_reference_policy=penalties)
            )
            return
        from verl.trainer.ppo.utils import need_critic

        penalties = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
        validate_config(config, penalties, need_critic(config))


def _told(error: Exception) -> str:
    """Type and message; of an assertion without one, its line."""
    if isinstance(error, AssertionError) and not str(error):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code
        lines = Path(code.co_filename).read_text(encoding="utf-8").splitlines()
        return " ".join(
            ["AssertionError:", *(line.strip() for line in lines[trace.tb_lineno - 1 : trace.tb_lineno + 4])]
        )
    if isinstance(error, ZeroDivisionError):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        lines = Path(trace.tb_frame.f_code.co_filename).read_text(encoding="utf-8").splitlines()
        return f"ZeroDivisionError: {lines[trace.tb_lineno - 1].strip()}"
    return repr(error)


def code_of(error: str) -> str:
    """The rule that an error text of verl stands for. Raises `LookupError` for one that no rule is known for."""
    if "ZeroDivisionError" in error:
        if "ppo_micro_batch_size" not in error and "critic" not in error:
            return "BB-VERL-010"
        return "BB-VERL-060" if "critic" in error.lower() else "BB-VERL-015"
    for words, code in ASSERTIONS.items():
        if error.startswith("AssertionError:") and words in error:
            return code
    for pattern, code in CODES:
        if code is not None and re.search(pattern, error):
            return code
    raise LookupError(error)


@functools.cache
def _model() -> dict[str, Any]:
    """A model on disk for the critic's dataclasses, which read its configuration, and up to 0.7.1 its tokenizer."""
    folder = Path(tempfile.mkdtemp(prefix="batchbridge-verl-"))
    files = {
        "config.json": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 1},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a", "pad_token": "a"},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return {
        "critic.model.path": str(folder),
        "critic.model.tokenizer_path": str(folder),
        "critic.model.load_tokenizer": False,
    }


def _set(config: Any, key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for name in parents:
        config = config[name]
    config[leaf] = value


def _leave_out(group: Any, prefix: str) -> None:
    from omegaconf import DictConfig

    for name in list(group):
        if isinstance(group._get_node(name), DictConfig) and name not in KEPT:
            _leave_out(group[name], f"{prefix}{name}.")
            if set(group[name]) <= {"_target_"}:
                del group[name]
        elif f"{prefix}{name}" not in BY_KEY and name not in KEPT:
            del group[name]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def main() -> None:
    """Writes the verdicts of the installed version."""
    validator = Validator()
    for values in configurations(int(sys.argv[1]), validator.known):
        error = validator.error(values)
        row = {"version": validator.version, "code": error and code_of(error), "error": error and error[:160]}
        print(json.dumps({**row, "values": values}, separators=(",", ":")))


if __name__ == "__main__":
    main()
