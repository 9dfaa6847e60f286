"""Settings that the schema has no field for and that several frameworks have: models, data, rewards, names, logs.

An adapter's table of what lies outside the schema (`Adapter.outside`) says of each what it decides, for `diff`, and
with a `SharedSetting` how `convert` reads and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from batchbridge.frozen import dataclass

if TYPE_CHECKING:
    from batchbridge.contract.reading import Reading


@dataclass(frozen=True)
class SharedWord:
    """The word for a setting that several frameworks have. variable: its name where a person has to fill it in.
    silent: nobody has to look at it where nothing is made of it."""

    variable: str
    says: str
    silent: bool = False


SHARED: Mapping[str, SharedWord] = {
    "model": SharedWord("MODEL", "the model: a folder, or a name on the Hugging Face Hub"),
    "train_data": SharedWord("DATA", "prompts to train on: a name on the Hugging Face Hub"),
    "validation_data": SharedWord("VAL_DATA", "prompts to validate on: a name on the Hugging Face Hub"),
    "prompt_column": SharedWord("PROMPT_COLUMN", "the column of the data that has the prompt"),
    "rewards": SharedWord(
        "REWARDS", "how completions are rewarded, in words: no framework runs another one's functions"
    ),
    "generator": SharedWord("GENERATOR", "what generates completions beside the trainer: `vllm`", silent=True),
    "loggers": SharedWord("LOGGERS", "where metrics go: a tuple of `wandb`, `tensorboard`, `swanlab`, `mlflow`, ..."),
    "output_folder": SharedWord("OUTPUT_FOLDER", "the folder of checkpoints"),
    "save_every": SharedWord("SAVE_EVERY", "rollouts between two checkpoints, a fraction (rollouts); 0: none is saved"),
    "kept_checkpoints": SharedWord("KEPT_CHECKPOINTS", "the most checkpoints that are kept (checkpoints)"),
    "project": SharedWord("PROJECT", "the project in which the run is logged"),
    "run_name": SharedWord("RUN_NAME", "the name under which the run is logged"),
    "gradient_checkpointing": SharedWord("GRADIENT_CHECKPOINTING", "whether activations are computed again: a flag"),
    "trust_remote_code": SharedWord("TRUST_REMOTE_CODE", "whether a model's own code may run: a flag"),
}
"""The words that adapters share, in the order in which they are written."""


def as_it_is(value: Any, reading: Reading) -> Any:
    """The value itself."""
    return value


@dataclass(frozen=True)
class SharedSetting:
    """A native setting that the schema has no field for, and that other frameworks have, too.

    name: one of `SHARED`. decides: as `Adapter.decides` gives it. read: from the native value to the shared one, None
    where no other framework could take it. write: from the shared value to the native one, None where it has no such.
    Both get the reading that the setting belongs to. versions: where it is written (PEP 440). beside: other keys that
    `read` looks at. needed: what stands there in a run that can start, for a person; empty: it can start without.
    blank: the native value around a variable's name that is yet to be filled in. also: native settings that are written
    with it, of the reading that it is written beside. unsaid: the shared value of a run in which nobody gives the
    setting, where frameworks differ in it; it is carried over to one with another. Where several settings of a
    framework have one name, the first that the version knows is written.
    """

    name: str
    decides: str = ""
    read: Callable[[Any, Reading], Any] = as_it_is
    write: Callable[[Any, Reading], Any] = as_it_is
    versions: str = ""
    beside: tuple[str, ...] = ()
    needed: str = ""
    blank: Callable[[str], Any] = str
    also: Callable[[Reading], Mapping[str, Any]] = lambda reading: {}
    unsaid: Any = None

    def __post_init__(self) -> None:
        if self.name not in SHARED:
            raise ValueError(f"SharedSetting {self.name!r}: known are {', '.join(SHARED)}")
