"""The source configurations of the equivalence suite, and what each run of it is told. Standard library only: every
framework's environment reads this."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
FORMS = {"trl": ("yaml", "yaml"), "verl": ("hydra", "sh"), "easyr1": ("yaml", "yaml"), "openrlhf": ("shell", "sh")}
"""Framework -> (form of `batchbridge convert`, ending of the file's name)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run, to be the same in every framework.

    source: file in `sources`. framework, version: whose it is. prompts: of the dataset. optimizer: what it asks for;
    kits inject SGD where a framework has none. ranks: devices of every run. ci: run by `nox -s equivalence`.
    """

    name: str
    source: str
    framework: str
    version: str
    prompts: int
    optimizer: str
    ranks: int = 1
    ci: bool = False

    @property
    def path(self) -> Path:
        """The source configuration."""
        return HERE / "sources" / self.source

    @property
    def arguments(self) -> list[str]:
        """What every command of `batchbridge` is told about the source."""
        told = {"framework": self.framework, "framework-version": self.version, "dataset-size": self.prompts}
        if self.framework == "trl":
            told["world-size"] = self.ranks  # what a TRL configuration does not say
        return [str(self.path), *(word for name, value in told.items() for word in (f"--{name}", str(value)))]


CASES = {
    case.name: case
    for case in (
        Case(
            name="token_mean",
            source="trl_token_mean.yaml",
            framework="trl",
            version="1.16.0",
            prompts=20,
            optimizer="adamw",
            ci=True,
        ),
        Case(
            name="sequence_mean_two_passes",
            source="verl_sequence_mean.sh",
            framework="verl",
            version="0.9.1",
            prompts=12,
            optimizer="sgd",
            ci=True,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a runner is told: `order.json` in its folder. mode: of `wrap`. target: the framework; variant: its trainer.

    native: the configuration that `convert` wrote, or the source itself.
    """

    case: str
    target: str
    mode: str
    native: str
    variant: str = ""

    @property
    def told(self) -> Case:
        """The case."""
        return CASES[self.case]

    def write(self, folder: Path) -> None:
        """Leaves it for the runner."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "order.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Order:
        """What `write` left."""
        return cls(**json.loads((folder / "order.json").read_text(encoding="utf-8")))
