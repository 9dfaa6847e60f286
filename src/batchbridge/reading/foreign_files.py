"""Files that look like a configuration of a run and are something else: other people's frameworks, launchers, sweeps.

Each is told by keys that the frameworks read here do not have together, so that nobody is asked whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ForeignFile(NamedTuple):
    """A kind of file by its keys: `needs` are all there, or `words` has the value of its key.

    what: what it is, in a sentence that begins with "it is". trains: whether reinforcement learning runs from it.
    """

    what: str
    needs: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]] = {}
    trains: bool = False


_PREFERENCES = ("sigmoid", "hinge", "ipo", "kto_pair", "kto", "orpo", "simpo", "bco_pair", "robust", "apo_zero")
_LLAMA_FACTORY = "LLaMA-Factory's ({stage})"
_ACCELERATES = "accelerate's, which says how a run is started: name the recipe or the launch script"
FOREIGN = (
    ForeignFile(_LLAMA_FACTORY, ("stage", "finetuning_type"), {"stage": ("ppo",)}, trains=True),
    ForeignFile(_LLAMA_FACTORY, ("stage", "finetuning_type")),
    ForeignFile(_LLAMA_FACTORY, ("stage", "template", "cutoff_len")),
    ForeignFile("ROLL's", ("actor_train", "actor_infer"), trains=True),
    ForeignFile("axolotl's ({rl})", ("base_model", "rl"), {"rl": ("grpo", "gdpo")}, trains=True),
    ForeignFile("axolotl's ({rl})", ("base_model", "rl", "micro_batch_size")),
    ForeignFile("axolotl's", ("base_model", "micro_batch_size", "datasets")),
    ForeignFile("Trinity-RFT's", ("buffer", "explorer", "trainer"), trains=True),
    ForeignFile("Trinity-RFT's", ("buffer", "algorithm", "cluster"), trains=True),
    ForeignFile("a sweep of W&B's", ("method", "parameters", "program")),
    ForeignFile("a sweep of W&B's", ("method", "parameters", "metric")),
    ForeignFile("DeepSpeed's", ("zero_optimization",)),
    ForeignFile(
        _ACCELERATES,
        ("compute_environment", "distributed_type"),
    ),
    ForeignFile(
        _ACCELERATES,
        ("distributed_type", "num_processes"),
    ),
    ForeignFile("the alignment handbook's, or one like it: fine-tuning on given answers", ("dataset_mixer",)),
    ForeignFile("a preference tuning ({loss_type})", ("loss_type", "beta"), {"loss_type": _PREFERENCES}),
    ForeignFile("an evaluation", ("tasks", "model_args")),
    ForeignFile("an evaluation", ("task", "output_type")),
    ForeignFile("a task of SkyPilot's", ("resources", "run")),
    ForeignFile("a task of dstack's", ("type", "commands")),
    ForeignFile("a composition of containers", ("services",)),
    ForeignFile("Kubernetes'", ("apiVersion", "kind")),
    ForeignFile("a conda environment", ("channels", "dependencies")),
    ForeignFile("pre-commit's", ("repos",)),
    ForeignFile("a site's", ("site_name",)),
)
"""Kinds of files, the narrower ones first."""


def foreign_file(values: Mapping[str, Any]) -> tuple[str, bool] | None:
    """(what a file is, whether it trains) of one that none of the frameworks here reads; None: it is no such file."""
    for row in FOREIGN:
        if all(key in values for key in row.needs) and all(values[key] in words for key, words in row.words.items()):
            said = {key: str(value)[:20] for key, value in values.items() if f"{{{key}}}" in row.what}
            return row.what.format(**said), row.trains
    return None
