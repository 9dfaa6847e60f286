"""A user's own copy of verl: its settings as its YAML files compose, and which release's code decides its numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchbridge import Source
from batchbridge.kit.hydra_settings import flag_of
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.own_copy import CopyFacts, OwnCopy, compared_copy, near_folder
from batchbridge.kit.proven import methods
from batchbridge_verl.programs import PROGRAM
from batchbridge_verl.settings import ENGINE, ENGINES, defaults_of

_RAY, _CORE = "trainer/ppo/ray_trainer.py", "trainer/ppo/core_algos.py"
_ACTOR, _WORKER, _ENGINE_WORKER = "workers/actor/dp_actor.py", "workers/fsdp_workers.py", "workers/engine_workers.py"
_V1, _BUFFER = "trainer/ppo/v1/trainer_base.py", "trainer/ppo/v1/replay_buffer.py"
_TRANSFORMER = "workers/engine/fsdp/transformer_impl.py"
_BESIDE = (None, "config", "./config")
"""Folders of configurations, as Hydra's flag says them, that lie beside the program."""
FACTS = CopyFacts(
    package="verl",
    home="batchbridge_verl",
    markers=("trainer/config/ppo_trainer.yaml", "trainer/ppo/ray_trainer.py"),
    label=("version/version", "__init__.py"),
    numbers={
        "rollout size": {
            _RAY: methods("RayPPOTrainer", "fit", "_create_dataloader", "_get_gen_batch"),
            _V1: methods("PPOTrainer", "step", "_step_once", "_fetch_one_gen_batch", "_next_train_batch"),
            _BUFFER: methods("ReplayBuffer", "sample", "_select_prompt_uids"),
        },
        "step size": {
            _WORKER: methods("ActorRolloutRefWorker", "__init__", "update_actor"),
            _ACTOR: methods("DataParallelPPOActor", "update_policy"),
            _RAY: methods("RayPPOTrainer", "_update_actor"),
            _V1: methods("PPOTrainer", "_update_actor", "_get_required_batch_multiple"),
            _ENGINE_WORKER: (
                *methods("ActorRolloutRefWorker", "update_actor"),
                *methods("TrainingWorker", "train_mini_batch", "train_batch"),
            ),
        },
        "passes": {
            _ACTOR: methods("DataParallelPPOActor", "update_policy"),
            _ENGINE_WORKER: methods("TrainingWorker", "train_mini_batch"),
        },
        "token weights": {
            _ACTOR: methods("DataParallelPPOActor", "update_policy"),
            _CORE: ("agg_loss", "compute_policy_loss", "compute_policy_loss_vanilla", "kl_penalty"),
            "utils/torch_functional.py": ("masked_mean", "masked_sum"),
            "utils/seqlen_balancing.py": ("rearrange_micro_batches",),
            "workers/utils/losses.py": ("ppo_loss",),
            _TRANSFORMER: methods("FSDPEngine", "forward_backward_batch"),
        },
        "order": {
            _RAY: methods("RayPPOTrainer", "_create_dataloader", "_balance_batch"),
            "trainer/main_ppo.py": ("create_rl_sampler",),
            _V1: methods("PPOTrainer", "_init_dataloader"),
        },
    },
)
"""Functions of the FSDP engine; a copy that runs another one is compared in these alone, too."""


def own_copy(source: Source) -> OwnCopy | None:
    """The copy that a source's program stands in; None where there is none."""
    engine = _engine(source)
    return compared_copy(
        source, FACTS, lambda folder: _declared(folder, source, engine), lambda release: defaults_of(release, "fsdp")
    )


def config_folders(source: Source, folder: Path) -> list[Path]:
    """The folders of configurations: the one that the command names, or the one beside the program where that is the
    user's own; then the copy's."""
    from batchbridge.kit import near_file

    path = flag_of(source.argv, "path")
    if path not in _BESIDE and (named := near_folder(path, source.path)) is not None:
        return [named, folder / "trainer" / "config"]
    module = PROGRAM.words_after_entry(source.argv)[0] if source.argv else None
    program = None if module is None else near_file(f"{module.replace('.', '/')}.py", source.path)
    own = [] if program is None else [program.resolve().parent / "config"]
    return [*(one for one in own if one.is_dir()), folder / "trainer" / "config"]


def names_its_own(source: Source, copy: OwnCopy) -> bool:
    """Whether the configuration that a source's command names is the copy's, or stands beside its program."""
    name, path = flag_of(source.argv, "name"), flag_of(source.argv, "path")
    files = [one / f"{name}.yaml" for one in config_folders(source, copy.folder)]
    near = path in _BESIDE or near_folder(path, source.path) is not None
    return near and (name is None or any(file.is_file() for file in files))


def without_choices(source: Source, copy: OwnCopy) -> Source:
    """The source without the words that choose a file of the copy's configurations (`data=mine`, where its folder has
    `data/mine.yaml`): what that file says is among the copy's settings already."""
    words = _choices(source, copy.folder)
    if not words:
        return source
    _, files = _composed(copy.folder, source, _engine(source))
    read = [word for word in words if any(_is_file_of(word, file) for file in files)]
    values = {
        key: value for key, value in source.values.items() if key not in {word.partition("=")[0] for word in read}
    }
    return replace(source, argv=tuple(word for word in source.argv if word not in read), values=values)


def _choices(source: Source, folder: Path) -> list[str]:
    """The words of a command that name a file in a folder of configurations. Hydra takes a word as a choice where
    there is a folder of its key's name. Source: hydra-core 1.3.2 ConfigLoaderImpl, group_exists."""
    plain = [word for word in source.argv if _CHOICE.fullmatch(word) and not word.startswith(f"{ENGINE}=")]
    if not plain:
        return []
    folders = config_folders(source, folder)
    named = ((word, *word.partition("@" if "@" in word.partition("=")[0] else "=")) for word in plain)
    return [
        word for word, group, _, _ in named if any((one / group / f"{_option(word)}.yaml").is_file() for one in folders)
    ]


_CHOICE = re.compile(r"[A-Za-z_][\w/]*(?:@[\w.]+)?=[A-Za-z_][\w./-]*")


def _option(word: str) -> str:
    return word.partition("=")[2].removesuffix(".yaml")


def _is_file_of(word: str, file: Path) -> bool:
    group = word.partition("=")[0].partition("@")[0]
    return file.as_posix().endswith(f"/{group}/{_option(word)}.yaml")


def _declared(folder: Path, source: Source, engine: str) -> dict[str, object]:
    """Key to default of the configuration that a source starts from."""
    tree, _ = _composed(folder, source, engine)
    return {key: value for key, value in settings_in(tree) if key != ENGINE}


def _composed(folder: Path, source: Source, engine: str) -> tuple[dict[str, Any], list[Path]]:
    """The configuration that a source starts from, and the files that it is made of."""
    folders = config_folders(source, folder)
    path = flag_of(source.argv, "path")
    name = flag_of(source.argv, "name") if path in _BESIDE or near_folder(path, source.path) is not None else None
    if name is None or not any((one / f"{name}.yaml").is_file() for one in folders):
        name = _named_by_main(folder) or "ppo_trainer"
    both = (folder / "trainer" / "config" / "model_engine").is_dir()
    if engine != "fsdp" and not both and (folder / "trainer" / "config" / f"ppo_{engine}_trainer.yaml").is_file():
        name = f"ppo_{engine}_trainer" if name == "ppo_trainer" else name
    from batchbridge.kit.composed_yaml import composed

    chosen = {word.partition("=")[0]: _option(word) for word in _choices(source, folder)}
    return composed(folders, name, {**({ENGINE: engine} if both and engine != "fsdp" else {}), **chosen})


_MAIN = re.compile(r"^@hydra\.main\(([^)]*)\)", re.MULTILINE)
_NAME = re.compile(r"config_name\s*=\s*['\"]([\w-]+)['\"]")


def _named_by_main(folder: Path) -> str | None:
    """The configuration that the copy's own main_ppo composes where nobody names one."""
    try:
        text = (folder / "trainer" / "main_ppo.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _MAIN.search(text)
    named = None if found is None else _NAME.search(found[1])
    there = named is not None and (folder / "trainer" / "config" / f"{named[1]}.yaml").is_file()
    return named[1] if named is not None and there else None


def _engine(source: Source) -> str:
    """The engine that a source's words choose; FSDP where they say none."""
    said = {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in source.argv if "=" in word}
    named = said.get(ENGINE, flag_of(source.argv, "name") or "")
    return next((one for one in ENGINES if one in named), ENGINES[0])
