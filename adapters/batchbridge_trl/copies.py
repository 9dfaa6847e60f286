"""A user's own copy of TRL: the fields of its `GRPOConfig`, and whose code decides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from batchbridge import Source
from batchbridge.kit.declared_settings import OPEN, DeclaredSetting, declared_fields
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind
from batchbridge.kit.own_copy import CopyFacts, OwnCopy, compared_copy
from batchbridge.kit.parser_kinds import ANY, BOOL, TEXTS
from batchbridge.kit.proven import methods
from batchbridge_trl.settings import GRPO_CONFIG
from batchbridge_trl.tables import SettingGroup, settings_of

TRAINER_FILE, _CONFIG, _UTILS = "trainer/grpo_trainer.py", "trainer/grpo_config.py", "trainer/utils.py"
_SAMPLERS = ("RepeatRandomSampler.__iter__", "RepeatSampler.__iter__")  # in 0.15, and from 0.16 on
_CUT = ("split_tensor_dict", "shuffle_sequence_dict", "shuffle_tensor_dict")
FACTS = CopyFacts(
    package="trl",
    home="batchbridge_trl",
    markers=(TRAINER_FILE, _CONFIG),
    label=("VERSION", "../VERSION", "__init__.py"),
    numbers={
        "rollout size": {
            TRAINER_FILE: (
                *methods("GRPOTrainer", "__init__", "get_train_dataloader", "_get_train_sampler", "_prepare_inputs"),
                *methods("GRPOTrainer", "_generate_and_score_completions"),
                *_SAMPLERS,
            ),
            _CONFIG: ("GRPOConfig.__post_init__",),
            _UTILS: ("RepeatSampler.__iter__",),
        },
        "step size": {
            TRAINER_FILE: (*methods("GRPOTrainer", "_prepare_inputs", "training_step"), *_CUT),
            _CONFIG: ("GRPOConfig.__post_init__",),
            _UTILS: ("split_tensor_dict", "shuffle_sequence_dict"),
        },
        "passes": {
            TRAINER_FILE: (*methods("GRPOTrainer", "_prepare_inputs"), *_SAMPLERS),
            _UTILS: ("RepeatSampler.__iter__",),
        },
        "token weights": {
            TRAINER_FILE: (
                *methods("GRPOTrainer", "compute_loss", "_compute_loss", "compute_liger_loss"),
                *methods("GRPOTrainer", "_generate_and_score_completions"),
            ),
            _UTILS: ("selective_log_softmax",),
        },
        "order": {
            TRAINER_FILE: (*methods("GRPOTrainer", "_get_train_sampler"), *_SAMPLERS),
            _UTILS: ("RepeatSampler.__iter__",),
        },
    },
)
_INHERITED = frozenset(
    {
        *("learning_rate", "remove_unused_columns", "logging_steps", "gradient_checkpointing", "bf16"),
        *("lr_scheduler_kwargs", "use_liger_kernel", "torch_empty_cache_steps"),
    }
)
"""Fields of transformers' TrainingArguments that `GRPOConfig` declares again in some releases."""
_KINDS: Mapping[str, Kind] = {"bool": BOOL, "list": TEXTS}


def own_copy(source: Source, groups: tuple[SettingGroup, ...]) -> OwnCopy | None:
    """The copy that lies beside a source; None where there is none. groups: every key that its parser takes."""
    copy = compared_copy(source, FACTS, _declared, _known)
    return copy and replace(copy, own=copy.own - settings_of(groups, copy.release).keys())


def _known(release: str) -> list[str]:
    return [key for key, row in settings_of((GRPO_CONFIG,), release).items() if not row.fixed]


def _declared(folder: Path) -> dict[str, DeclaredSetting]:
    found = declared_fields(folder.parent, folder / _CONFIG, "GRPOConfig", nested=False)
    if not found:
        raise ValueError(f"{_CONFIG} declares no GRPOConfig")
    return found


def rows_in(copy: OwnCopy, rows: Mapping[str, Key]) -> dict[str, Key]:
    """The rows of a release as a copy has them: keys of `GRPOConfig` that it lacks are no settings, its own are."""
    lacking = {*_known(copy.release)} - copy.declared.keys() - _INHERITED if copy.declared else set()
    had = {key: row._replace(fixed=True) if key in lacking else row for key, row in rows.items()}
    return with_declared(had, copy.declared)


def with_declared(rows: Mapping[str, Key], declared: Mapping[str, DeclaredSetting]) -> dict[str, Key]:
    """Rows with the defaults that are declared, and with a row of any value for each key that has none."""
    found = dict(rows)
    for key, one in declared.items():
        row = rows.get(key)
        if row is None or row.fixed:
            found[key] = Key(key, _KINDS.get(one.kind, ANY), one.default)
        elif one.default is not OPEN and (one.default is None or isinstance(one.default, bool | int | float | str)):
            found[key] = row._replace(default=one.default)
    return found
