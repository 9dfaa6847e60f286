"""An adapter of options reads what Python's own argparse reads, and refuses what it refuses; and keeps the contract."""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from batchbridge import hookimpl
from batchbridge.contract import plugins
from batchbridge.contract.detection import DetectionFacts
from batchbridge.contract.reading import Behaviour, Context, Source
from batchbridge.errors import PlanError
from batchbridge.kit.argparse_adapter import ArgparseAdapter, arities
from batchbridge.kit.key_table import Codes, Key, Unsayable
from batchbridge.kit.kinds import anything, flag, natural, one_of, optional, real, text, whole
from batchbridge.kit.values import FieldValue
from batchbridge.meaning.spec import (
    Carried,
    Horizon,
    Loss,
    LossTerm,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
)
from batchbridge.reading.arguments import parse_arguments
from batchbridge.reading.scripts import load_arguments
from batchbridge.testing.contract import AdapterContract, InvalidCase, ValidCase

LOSSES = {"mean": "sequence_mean", "tokens": "token_mean"}


class LampAdapter(ArgparseAdapter):
    """Framework `lamp`: `torchrun -m lamp.train --options`."""

    framework = "lamp"
    versions = ">=1,<2"
    newest_version = "1.0"
    codes = Codes.of("BB-LAMP")
    tells = DetectionFacts(own={"n-samples-per-prompt": 0.6}, programs={r"^lamp\.train$": 1.0})
    start = "torchrun --nproc_per_node={nproc_per_node} -m lamp.train"
    launched: ClassVar[Mapping[str, str]] = {"nproc_per_node": "nproc_per_node"}
    options = arities({"rm-url": 1, "eval-sets": -1, "window": 2, "verbose": 0, "names": -1})
    parser = "lamp 1.0 train.py"
    keys = (
        Key("nproc_per_node", natural, None, "topology.world_size", unit="devices"),
        Key("rollout-batch-size", natural, 32, "rollout.prompts_per_rollout", unit="prompts"),
        Key("n-samples-per-prompt", natural, 8, "rollout.completions_per_prompt"),
        Key("global-batch-size", optional(natural), None, unit="completions of a step"),
        Key("loss", one_of(*LOSSES), "mean", "loss.policy.aggregation", LOSSES),
        Key("lr", real(0), 1e-6, "carried.learning_rate"),
        Key("seed", whole(), 42, "order.seed"),
        Key("shuffle", flag, False, "order.prompt_shuffle", {True: "epoch_permutation", False: "none"}),
        Key("num-epoch", real(0), 1.0, "horizon.epochs"),
        Key("names", optional(anything), None),
        Key("note", optional(text), None),
    )
    constants: ClassVar[Mapping[str, Any]] = {"objective.surrogate": "ppo", "objective.ratio_level": "token"}

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        size = native["global-batch-size"] or native["rollout-batch-size"] * native["n-samples-per-prompt"]
        keys = ("global-batch-size", "rollout-batch-size", "n-samples-per-prompt")
        return {"optimizer_step.completions_per_step": FieldValue(size, None, "given, or a rollout", keys)}

    def restate(self, spec: Spec) -> Mapping[str, Any]:
        size = spec.optimizer_step.completions_per_step
        if size is None:
            raise Unsayable("a step has a number of completions", "optimizer_step.completions_per_step")
        return {"global-batch-size": size}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        return Behaviour(
            order="as seeded", membership="in order", denominator_scope="optimizer_step", denominator_formula="1 / n",
            lr_tick="optimizer step", resume="exact", source="lamp 1.0 train.py",
        )  # fmt: skip


class Lax(LampAdapter):
    """The same framework with `parse_known_args`."""

    ignores_unknown = True


def parser() -> argparse.ArgumentParser:
    """The framework's own parser."""
    made = argparse.ArgumentParser("train.py")
    for name, kind, default in (
        ("rollout-batch-size", int, 32), ("n-samples-per-prompt", int, 8), ("global-batch-size", int, None),
        ("lr", float, 1e-6), ("seed", int, 42), ("num-epoch", float, 1.0), ("note", str, None), ("rm-url", str, None),
    ):  # fmt: skip
        made.add_argument(f"--{name}", type=kind, default=default)
    made.add_argument("--loss", choices=list(LOSSES), default="mean")
    made.add_argument("--shuffle", action="store_true")
    made.add_argument("--verbose", action="store_true")
    made.add_argument("--names", nargs="+")
    made.add_argument("--eval-sets", nargs="+")
    made.add_argument("--window", nargs=2)
    return made


WORDS = [
    *("--rollout-batch-size", "--n-samples-per-prompt", "--global-batch-size=64", "--global", "--lr", "--lr=1e-5"),
    *("--loss", "--loss=tokens", "--loss=none", "--shuffle", "--shuffle=1", "--verbose", "--names", "--eval-sets"),
    *("--window", "--num", "--n", "--rm-url", "--note", "--sead", "--"),
    *("8", "64", "1e-6", "0.5", "mean", "tokens", "a", "b c", "-1", "-x", ""),
]


def as_argparse(words: list[str]) -> dict[str, Any] | None:
    """What the framework's parser makes of words; None: it refuses them."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return {key.replace("_", "-"): value for key, value in vars(parser().parse_args(words)).items()}
        except SystemExit:
            return None


def read(words: list[str], adapter: type[ArgparseAdapter] = LampAdapter) -> Any:
    argv = ("python", "-m", "lamp.train", *words)
    source = Source(values=parse_arguments(argv), argv=argv, launcher={"nproc_per_node": "4"})
    return adapter().read(source, Context(framework_version="1.0"))


def test_random_commands_are_read_as_argparse_reads_them() -> None:
    rng, taken, refused = random.Random(7), 0, 0
    for _ in range(4000):
        words = rng.choices(WORDS, k=rng.randint(0, 7))
        native, reading = as_argparse(words), read(words)
        wrong = [
            one for one in reading.findings if one.code in ("BB-LAMP-005", "BB-LAMP-004") and one.severity == "error"
        ]
        if native is None:
            refused += 1
            assert wrong, words
        elif not _beyond_a_kind(native):
            taken += 1
            assert not wrong, (words, wrong)
            ours = {key: value for key, value in reading.native.items() if key in native}
            assert ours == {key: native[key] for key in ours}, words
    assert taken > 300
    assert refused > 1000


def _beyond_a_kind(native: Mapping[str, Any]) -> bool:
    """Whether argparse takes a value that no run has: no prompts, a rate below 0."""
    sizes = ("rollout-batch-size", "n-samples-per-prompt", "global-batch-size")
    return any((native[key] or 1) < 1 for key in sizes) or native["lr"] < 0 or native["num-epoch"] < 0


@pytest.mark.parametrize(
    ("words", "code", "severity", "text"),
    [
        ("--sead 3", "BB-LAMP-004", "error", "lamp has no option --sead"),
        ("--lr fast", "BB-LAMP-005", "error", "--lr fast: expected a number from 0"),
        ("--n 3", "BB-LAMP-004", "error", "could be short for"),
        ("stray --lr 1e-5", "BB-LAMP-004", "error", "no option takes 'stray'"),
        ("--loss", "BB-LAMP-005", "error", "--loss needs a value"),
    ],
)
def test_what_argparse_refuses_is_an_error_with_its_option(words: str, code: str, severity: str, text: str) -> None:
    assert as_argparse(shlex.split(words)) is None
    found = [one for one in read(shlex.split(words)).findings if one.code == code]
    assert [(one.severity, text in one.message) for one in found] == [(severity, True)], found


def test_an_option_that_is_passed_over_is_a_warning_with_the_near_one() -> None:
    reading = read(["--sead", "3"], Lax)
    assert reading.spec is not None
    (found,) = [one for one in reading.findings if one.code == "BB-LAMP-004"]
    assert (found.severity, found.phase, found.fixes[0].text) == ("warning", "never", "write --seed")
    assert parser().parse_known_args(["--sead", "3"])[0].seed == 42 == reading.spec.order.seed


def test_the_devices_are_the_launchers_and_stand_in_the_command_that_is_written() -> None:
    reading = read(["--shuffle", "--names", "a", "b"])
    assert reading.spec is not None
    assert reading.spec.topology.world_size == 4
    written = LampAdapter().write(reading.spec)
    assert written.text["sh"].splitlines()[:2] == ["# for lamp 1.0", "torchrun --nproc_per_node=4 -m lamp.train \\"]
    argv = written.text["argv"].splitlines()
    assert argv[:4] == ["torchrun", "--nproc_per_node=4", "-m", "lamp.train"]
    assert "--shuffle" in argv
    assert as_argparse(argv[4:]) is not None
    again = LampAdapter().read(load_arguments(argv), Context(framework_version="1.0"))
    assert again.spec == reading.spec


def test_set_counts_on_top_of_a_command() -> None:
    argv = ("python", "-m", "lamp.train", "--lr", "1e-5", "--seed", "3")
    values = {**parse_arguments(argv), "seed": 5}
    reading = LampAdapter().read(Source(values=values, argv=argv), Context(framework_version="1.0", world_size=2))
    assert (reading.native["seed"], reading.native["lr"]) == (5, 1e-5)


def test_a_table_of_options_of_another_framework_is_noticed() -> None:
    """The control of the comparison: without the arity of one option it fails."""
    less = type("Less", (LampAdapter,), {"options": arities({"rm-url": 1, "eval-sets": -1, "window": 2})})
    words = ["--verbose", "--lr", "1e-5"]
    assert as_argparse(words) is not None
    assert any(one.code == "BB-LAMP-004" for one in read(words, less).findings)


MEANT = Spec(
    topology=Topology(world_size=4),
    rollout=Rollout(prompts_per_rollout=16, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=32),
    loss=Loss(policy=LossTerm(aggregation="sequence_mean")),
    order=Order(prompt_shuffle="epoch_permutation", seed=42),
    horizon=Horizon(epochs=1.0),
    carried=Carried(learning_rate=1e-6),
    objective=Objective(surrogate="ppo", ratio_level="token"),
)
CONTEXT = Context(framework_version="1.0", world_size=4, dataset_size=64)
FIRST = (
    *("python", "-m", "lamp.train", "--rollout-batch-size", "16", "--n-samples-per-prompt", "4"),
    *("--global-batch-size", "32", "--shuffle"),
)
COMMAND = Source(values=parse_arguments(FIRST), argv=FIRST)


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """The framework as a plugin, so that commands are told to be its own."""

    class Plugin:
        @hookimpl
        def batchbridge_adapters(self) -> list[type[ArgparseAdapter]]:
            return [LampAdapter]

    plugin = Plugin()
    plugins.manager().register(plugin, "lamp")
    yield
    plugins.manager().unregister(plugin)


class TestLampAdapter(AdapterContract):
    adapter_class = LampAdapter
    framework_modules = ("lamp",)
    unknown_version = "0.1"
    written_version = "1.0"
    valid = (
        ValidCase(name="a command", source=COMMAND, context=CONTEXT, spec=MEANT),
        ValidCase(
            name="settings",
            source=Source(values={"lr": 1e-5}),
            context=CONTEXT,
            spec=MEANT.replace(
                **{
                    "rollout.prompts_per_rollout": 32,
                    "rollout.completions_per_prompt": 8,
                    "optimizer_step.completions_per_step": 256,
                    "order.prompt_shuffle": "none",
                    "carried.learning_rate": 1e-5,
                }
            ),
        ),
    )
    meanings = (({"loss": "tokens"}, {"loss.policy.aggregation": "token_mean"}),)
    idle: ClassVar[dict[str, str]] = dict.fromkeys(("names", "note"), "compared with argparse, and they mean nothing")
    invalid = (InvalidCase(name="a slip", source=Source(values={"sead": 1}), context=CONTEXT, codes=("BB-LAMP-004",)),)


def test_a_step_without_a_number_of_completions_cannot_be_said() -> None:
    spec = read([]).spec
    assert spec is not None
    with pytest.raises((ValueError, PlanError), match="number of completions"):
        LampAdapter().write(spec.replace(**{"optimizer_step.completions_per_step": None}))
