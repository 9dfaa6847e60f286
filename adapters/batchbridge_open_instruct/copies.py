"""A user's own copy of Open-Instruct: the fields of the dataclasses that its script parses, and whose code decides."""

from __future__ import annotations

from pathlib import Path

from batchbridge import Source
from batchbridge.kit.declared_settings import DeclaredSetting, as_default, classes_parsed, declared_fields
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import or_null
from batchbridge.kit.own_copy import CopyFacts, OwnCopy, compared_copy
from batchbridge.kit.parser_kinds import ANY, BOOL
from batchbridge_open_instruct.settings import GRPO, GRPO_FAST, other_rows, rows_of

_SCRIPT, _LOADER, _LOSS = GRPO_FAST, "data_loader.py", "grpo_utils.py"
FACTS = CopyFacts(
    package="open_instruct",
    home="batchbridge_open_instruct",
    markers=(_SCRIPT, "utils.py"),
    label=(),
    numbers={
        "rollout size": {
            _SCRIPT: ("main", "run_training", "data_preparation_thread", "accumulate_inference_batches"),
            _LOADER: ("accumulate_inference_batches", "DataPreparationActor._data_preparation_loop", "process_group"),
        },
        "step size": {
            _SCRIPT: ("PolicyTrainerRayProcess.step", "PolicyTrainerRayProcess.train", "one_training_step"),
            _LOADER: ("prepare_collated_data_for_workers",),
            "rl_utils.py": ("pack_sequences",),
        },
        "passes": {_SCRIPT: ("PolicyTrainerRayProcess.step", "PolicyTrainerRayProcess.train")},
        "token weights": {
            _SCRIPT: ("PolicyTrainerRayProcess.step", "PolicyTrainerRayProcess.train", "masked_mean"),
            "rl_utils.py": ("masked_mean",),
            _LOSS: ("compute_grpo_loss", "calculate_token_counts"),
        },
        "order": {
            _SCRIPT: ("ShufflingIterator.__next__", "setup_datasets", "main"),
            _LOADER: ("add_prompt_to_generator",),
        },
    },
)


def own_copy(source: Source, script: str | None) -> OwnCopy | None:
    """The copy that a source's GRPO script stands in; None where there is none."""
    if script not in (GRPO_FAST, GRPO):
        return None
    return compared_copy(source, FACTS, lambda folder: _declared(folder, script), _known)


def _known(checkout: str) -> list[str]:
    return [*(key for key, row in rows_of(checkout).items() if not row.fixed), *other_rows(checkout)]


def _declared(folder: Path, script: str) -> dict[str, DeclaredSetting]:
    found: dict[str, DeclaredSetting] = {}
    file = folder / script
    for name in classes_parsed(file):
        found |= declared_fields(folder.parent, file, name, nested=False)
    if not found:
        raise ValueError(f"{script} hands no dataclass to its parser")
    return found


def rows_in(copy: OwnCopy) -> tuple[dict[str, Key], dict[str, Key]]:
    """The settings that mean something here, with the copy's defaults, and all others that it declares."""
    known = rows_of(copy.release)
    rows = {key: row._replace(default=as_default(copy.declared, key, row.default)) for key, row in known.items()}
    beside = other_rows(copy.release)
    own = {key: one for key, one in copy.declared.items() if key not in known}
    here = {key: beside.get(key) or Key(key, or_null(BOOL if one.kind == "bool" else ANY)) for key, one in own.items()}
    return rows, here
