"""The source configurations of the equivalence suite, and what each run of it is told. Standard library only: every
framework's environment reads this."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
FORMS = {
    "trl": ("yaml", "yaml"),
    "verl": ("hydra", "sh"),
    "easyr1": ("yaml", "yaml"),
    "openrlhf": ("shell", "sh"),
    "open_instruct": ("shell", "sh"),
}
"""Framework -> (form of `batchbridge convert`, ending of the file's name)."""


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A target of the suite that takes another one's configuration: a trainer derived from its framework's, or an
    earlier release. It runs wrapped alone: as it is, it may well train what that framework trains.

    framework: whose configuration it takes. version: which `convert` writes for; None: the newest. cases: which it
    runs.
    """

    framework: str
    version: str | None = None
    cases: tuple[str, ...]


DERIVED = {
    "axolotl": Derived(
        framework="trl",
        cases=("token_mean", "whole_completions", "whole_rollouts_two_passes", "several_steps_with_kl"),
    ),
    # A completion without a trained token comes from a scheduler of several turns alone there.
    "ms_swift": Derived(framework="trl", cases=("whole_completions",)),
    # On its legacy workers, which are its default.
    "verl_071": Derived(
        framework="verl",
        version="0.7.1",
        cases=("token_mean", "whole_completions", "sequence_mean_two_passes", "nothing_divides"),
    ),
}


def framework_of(target: str) -> str:
    """Whose configuration a target of the suite takes."""
    return DERIVED[target].framework if target in DERIVED else target


INJECTED = ("carried.precision", "carried.optimizer", "carried.optimizer_epsilon")
"""What a framework's command line lacks and its testing kit injects: float32, SGD, and AdamW's epsilon."""
WITHOUT_EFFECT = {
    "objective.nonfinite_step": "no gradient of a scripted run is infinite",
    "objective.reward_clip": "scripted rewards lie between 0 and 6",
    "objective.kl_clamp": "no token is clamped, or a gradient would not be the oracle's",
    "objective.kl_log_ratio_clamp": "no token is clamped, or a gradient would not be the oracle's",
    "carried.max_prompt_tokens": "scripted prompts have at most four words",
    "carried.weight_decay_excludes": "no source decays weights",
    "carried.router_loss_coefficient": "the tiny policy has no experts",
    "carried.dropout": "the tiny policy has none",
    "carried.top_k": "nothing is sampled",
}
"""What a conversion may lose here."""
MODES = ("enforce", "observe")
"""Of `wrap`, in which every case runs."""
SEVERAL_STEPS = {
    "open_instruct": {
        "optimizer_step.completions_per_step",
        "optimizer_step.parts_per_rollout",
        "horizon.epochs",
        "horizon.rollouts",
    }
}
"""What Open-Instruct, whose optimizer step is the whole rollout, cannot say of several steps per rollout."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run, to be the same in every framework.

    source: file in `sources`. framework, version: whose it is. prompts: of the dataset. optimizer: what it asks for;
    kits inject SGD where a framework has none. ranks: devices of every run. seed: what keys the order of prompts where
    the source leaves it open, as OpenRLHF does; every run is then told the source's meaning with it. ci: modes in which
    `nox -s equivalence` runs it; ci_targets: what runs it there, all by default. cannot: at least what a framework
    cannot say of the case, which it does not run then. left_out: other runs that are not made, and why. flat: prompts
    whose completions all earn the same, for a group filter; rewards are then 0 or 1. images: the policy is one that
    reads images, and every prompt shows one or two. critic: a critic is trained beside the policy. own: canonical
    fields that no run can be told: each is told the source's meaning with its own framework's in their place. drawn:
    completions are drawn from the run's own policy, see `batchbridge_on_cpu.drawn`. whole: every completion has tokens
    that are trained, see `batchbridge_on_cpu.whole`.
    """

    name: str
    source: str
    framework: str
    version: str
    prompts: int
    optimizer: str
    ranks: int = 1
    seed: int | None = None
    ci: tuple[str, ...] = ()
    ci_targets: tuple[str, ...] = ()
    cannot: Mapping[str, Set[str]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    flat: tuple[int, ...] = ()
    images: bool = False
    critic: bool = False
    own: tuple[str, ...] = ()
    drawn: bool = False
    whole: bool = False

    @property
    def path(self) -> Path:
        """The source configuration."""
        return HERE / "sources" / self.source

    def runs(self, target: str) -> bool:
        """Whether a target of the suite runs the case, as far as it can say it."""
        derived = target in DERIVED and self.name not in DERIVED[target].cases
        return not derived and target not in self.left_out

    @property
    def environment(self) -> dict[str, str]:
        """What scripted engines are told: see `ScriptedRollouts.of_environment`; OpenRLHF's filter asks for scores."""
        if self.drawn:
            return {"BATCHBRIDGE_SCRIPT": "batchbridge_on_cpu.drawn:rollouts"}
        if self.whole:
            return {"BATCHBRIDGE_SCRIPT": "batchbridge_on_cpu.whole:rollouts"}
        if not self.flat:
            return {}
        flat = ",".join(map(str, self.flat))
        return {"BATCHBRIDGE_FLAT": flat, "BATCHBRIDGE_BINARY": "1", "BATCHBRIDGE_SCORES": "1"}

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
            ci=MODES,
            cannot=SEVERAL_STEPS,
        ),
        Case(
            name="whole_completions",
            source="trl_token_mean.yaml",
            framework="trl",
            version="1.16.0",
            prompts=12,
            optimizer="adamw",
            ci=("enforce",),
            ci_targets=("trl", "ms_swift"),
            cannot=SEVERAL_STEPS,
            whole=True,
        ),
        Case(
            name="sequence_mean_two_passes",
            source="verl_sequence_mean.sh",
            framework="verl",
            version="0.9.1",
            prompts=12,
            optimizer="sgd",
            cannot=SEVERAL_STEPS,
        ),
        Case(
            name="whole_rollouts_two_passes",
            source="trl_whole_rollouts.yaml",
            framework="trl",
            version="1.16.0",
            prompts=10,
            optimizer="sgd",
        ),
        Case(
            name="several_steps_with_kl",
            source="openrlhf_steps.sh",
            framework="openrlhf",
            version="0.11.2",
            prompts=12,
            optimizer="adamw",
            seed=11,
            cannot=SEVERAL_STEPS,
        ),
        Case(
            name="two_ranks",
            source="trl_two_ranks.yaml",
            framework="trl",
            version="1.16.0",
            prompts=20,
            optimizer="sgd",
            ranks=2,
            cannot=SEVERAL_STEPS,
        ),
        Case(
            name="nothing_divides",
            source="trl_token_mean.yaml",
            framework="trl",
            version="1.16.0",
            prompts=23,
            optimizer="adamw",
            cannot=SEVERAL_STEPS,
        ),
        Case(
            name="group_filter",
            source="openrlhf_group_filter.sh",
            framework="openrlhf",
            version="0.11.2",
            prompts=12,
            optimizer="adamw",
            seed=7,
            cannot={"trl": {"rollout.group_filter"}},
            left_out={
                "verl v0": "its trainer reads no group filter (BB-VERL-086)",
                "easyr1": "its filter is held against the plan alone (docs/easyr1.md)",
            },
            flat=(2, 5, 8, 11),
        ),
        Case(
            name="images",
            source="trl_images.yaml",
            framework="trl",
            version="1.16.0",
            prompts=12,
            optimizer="sgd",
            left_out={
                "openrlhf": "its images are held against the oracle alone (docs/openrlhf.md)",
                "open_instruct": "it trains models of text",
            },
            images=True,
        ),
        Case(
            name="critic",
            source="verl_critic.sh",
            framework="verl",
            version="0.9.1",
            prompts=12,
            optimizer="sgd",
            cannot={
                "trl": {"advantage.baseline", "critic.completions_per_step"},
                "easyr1": {"advantage.baseline", "critic.completions_per_step"},
                "open_instruct": {"critic.completions_per_step"},
            },
            critic=True,
            own=("advantage.ddof", "advantage.epsilon"),
        ),
    )
}

REAL = Case(
    name="real_run",
    source="trl_real.yaml",
    framework="trl",
    version="1.16.0",
    prompts=96,
    optimizer="adamw",
    left_out={"verl v0": "one trainer of verl's is enough"},
    drawn=True,
)
"""The run that learns, of `real_run.py`: no case of the suite's."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a runner is told: `order.json` in its folder. mode: of `wrap`. target: the framework; variant: its trainer.

    native: the configuration that `convert` wrote, or the source itself. more: settings in its own words on top. after:
    of a run that goes on, see `going_on.py`.
    """

    case: str
    target: str
    mode: str
    native: str
    variant: str = ""
    more: Mapping[str, str | int] = field(default_factory=dict)
    after: str = ""

    @property
    def told(self) -> Case:
        """The case."""
        return REAL if self.case == REAL.name else CASES[self.case]

    def write(self, folder: Path) -> None:
        """Leaves it for the runner."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "order.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Order:
        """What `write` left."""
        return cls(**json.loads((folder / "order.json").read_text(encoding="utf-8")))
