"""A user's own copy of EasyR1: its settings as its dataclasses declare them, and whose code decides its numbers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from batchbridge import Source
from batchbridge.kit.declared_settings import DeclaredSetting, as_default, declared_fields
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, or_null
from batchbridge.kit.omegaconf_kinds import ANY
from batchbridge.kit.own_copy import CopyFacts, OwnCopy, compared_copy
from batchbridge.kit.proven import methods
from batchbridge_easyr1.settings import FREE_GROUPS, NAMED_KINDS, kinds_of, settings_of

_RAY, _ACTOR, _WORKER = "trainer/ray_trainer.py", "workers/actor/dp_actor.py", "workers/fsdp_workers.py"
FACTS = CopyFacts(
    package="verl",
    home="batchbridge_easyr1",
    markers=("trainer/main.py", "trainer/config.py", "trainer/ray_trainer.py"),
    label=("__init__.py",),
    numbers={
        "rollout size": {
            _RAY: methods("RayPPOTrainer", "__init__", "_make_batch_data", "fit"),
            "trainer/data_loader.py": ("create_dataloader",),
        },
        "step size": {
            _WORKER: methods("FSDPWorker", "__init__", "_init_config", "_init_dist_mesh", "update_actor"),
            _ACTOR: methods("DataParallelPPOActor", "update_policy"),
        },
        "passes": {_ACTOR: methods("DataParallelPPOActor", "update_policy")},
        "token weights": {
            _ACTOR: methods("DataParallelPPOActor", "update_policy"),
            "trainer/core_algos.py": ("average_loss", "compute_policy_loss", "compute_kl"),
            "utils/torch_functional.py": ("masked_mean",),
        },
        "order": {
            _RAY: methods("RayPPOTrainer", "_balance_batch"),
            "trainer/data_loader.py": ("create_dataloader",),
        },
    },
)


def own_copy(source: Source) -> OwnCopy | None:
    """The copy that a source's program stands in; None where there is none."""
    return compared_copy(source, FACTS, _declared, kinds_of)


def _declared(folder: Path) -> dict[str, DeclaredSetting]:
    found = declared_fields(folder.parent, folder / "trainer" / "config.py", "PPOConfig")
    if not found:
        raise ValueError("trainer/config.py declares no PPOConfig")
    return found


def kinds_in(copy: OwnCopy) -> dict[str, Kind]:
    """Every key of a copy with what its field takes."""
    known = kinds_of(copy.release)
    return {key: known[key] if key in known and one.kind != "any" else _kind(one) for key, one in copy.declared.items()}


def free_groups_in(copy: OwnCopy) -> tuple[str, ...]:
    """The groups of a copy that take any key: fields that are dictionaries."""
    return *FREE_GROUPS, *(key for key, one in copy.declared.items() if one.kind == "dict")


def rows_in(copy: OwnCopy) -> dict[str, Key]:
    """The settings that are read, with the copy's defaults."""
    return {
        key: row._replace(default=_plain(as_default(copy.declared, key, row.default)))
        for key, row in settings_of(copy.release).items()
    }


@lru_cache(maxsize=8)
def _known_kind(name: str) -> Kind:
    return NAMED_KINDS.get(name, ANY)


def _kind(one: DeclaredSetting) -> Kind:
    kind = ANY if one.kind == "list" else _known_kind(one.kind)  # what a list of its own holds is not known
    return or_null(kind) if one.optional else kind


def _plain(default: object) -> object:
    return list(default) if isinstance(default, tuple) else default
