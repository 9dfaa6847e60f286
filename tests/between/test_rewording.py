"""What an adapter's sentences say decides nothing: conversions of reworded refusals and origins are the same.

Refusals lose the dots and underscores of everything in them, are all one word, or are never the same twice; and the
words where a value comes from go, so that neither can be read for a field or a native key, or compared.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real import DATASET, VERSIONS, name_of, text_of
from registered import adapters

from batchbridge.comparing import nearest_spec
from batchbridge.comparing.convert import Conversion, convert_to
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading, Written
from batchbridge.errors import Problem
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read

pytestmark = pytest.mark.usefixtures("own_adapters")
SAMPLE = 9
"""Each ninth launch command of the corpus by default; all of them take minutes: `nox -s rewording`."""
SHARED = Path(__file__).parents[3] / "shared" / "corpus"
REPOSITORIES = {
    "verl-project/verl": "0.9.1",
    "hiyouga/EasyR1": "0.3.3.dev0",
    "OpenRLHF/OpenRLHF": "0.10.4",
    "allenai/open-instruct": "2026.8.20",
}


PLAIN = nearest_spec.write


NUMBERED = itertools.count()
WORDINGS: dict[str, Callable[[str], str]] = {
    "without dots": lambda reason: reason.replace(".", " ").replace("_", " "),
    "all alike": lambda reason: "no",
    "each another": lambda reason: f"{reason} ({next(NUMBERED)})",
}
"""What becomes of a refusal's sentence: nothing can be read in it, or it is every other's, or never twice the same."""


def reworded(wording: Callable[[str], str]) -> Callable[..., Written | tuple[Problem, ...]]:
    """`nearest_spec.write`, with refusals in other words."""

    def write(adapter: Adapter, spec: Spec, version: str | None) -> Written | tuple[Problem, ...]:
        result = PLAIN(adapter, spec, version)
        if isinstance(result, Written):
            return result
        return tuple(dataclasses.replace(problem, reason=wording(problem.reason)) for problem in result)

    return write


def without_words(reading: Reading) -> Reading:
    """`reading` with origins that say nothing."""
    told = {path: dataclasses.replace(origin, detail="so") for path, origin in reading.provenance.items()}
    return dataclasses.replace(reading, provenance=told)


def decided(found: Conversion) -> tuple[object, ...]:
    """All that a conversion decides; sentences are left out."""
    values = None if found.written is None else found.written.values
    fields = [(field.field, field.status, field.source, field.target, field.factor) for field in found.fields]
    outside = [dataclasses.replace(report, wanted="", decides=None) for report in found.outside]
    return values, fields, [problem.fields for problem in found.refused], found.left_behind, found.verdict, outside


def differing(readings: Iterator[tuple[str, Reading]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The conversions that are another one in other words."""
    found, count = [], 0
    for name, reading in readings:
        for framework, adapter in adapters().items():
            if framework == reading.framework or reading.spec is None:
                continue
            monkeypatch.setattr(nearest_spec, "write", PLAIN)
            plain = convert_to(adapter, reading, version=VERSIONS[framework], given=reading.native)
            for how, wording in WORDINGS.items():
                monkeypatch.setattr(nearest_spec, "write", reworded(wording))
                other = convert_to(adapter, without_words(reading), version=VERSIONS[framework], given=reading.native)
                count += 1
                if decided(plain) != decided(other):
                    found.append(f"{name} to {framework}, {how}")
    assert count, "no conversion was compared"
    return found


def corpus(every: int) -> Iterator[tuple[str, Reading]]:
    """Every recipe, and each `every`-th launch command."""
    if not SHARED.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    for path in sorted((SHARED / "configs").rglob("*.yaml")):
        framework = "easyr1" if path.name == "config.yaml" else "open_r1" if path.parent.name == "grpo" else None
        if framework is not None:
            yield (
                path.name,
                read(path, framework=framework, version=VERSIONS[framework], world_size=8, dataset_size=DATASET),
            )
    rows = map(json.loads, (SHARED / "launch_argv.jsonl").read_text(encoding="utf-8").splitlines())
    commands = [(row["path"], row["repository"], command) for row in rows for command in row["commands"]]
    for path, repository, command in commands[::every]:
        yield path, read(command, version=REPOSITORIES[repository], dataset_size=DATASET)


def test_each_of_the_30_pairs_is_decided_by_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain() -> Iterator[tuple[str, Reading]]:
        for framework in VERSIONS:
            path = tmp_path / f"{framework}-{name_of(framework)}"
            path.write_text(text_of(framework), encoding="utf-8")
            world = 8 if path.suffix == ".yaml" else None
            version = VERSIONS[framework]
            yield framework, read(path, framework=framework, version=version, world_size=world, dataset_size=DATASET)

    assert differing(plain(), monkeypatch) == []


@pytest.mark.parametrize("loss", [{"loss_type": "dr_grpo"}, {"loss_type": "dapo", "num_iterations": 2}])
def test_a_recipe_that_no_target_says_whole_is_decided_by_data(
    loss: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 8, **loss}
    reading = read(recipe, framework="trl", version="1.16.0", world_size=8, dataset_size=10_000)
    assert differing(iter([("recipe", reading)]), monkeypatch) == []


@pytest.mark.shared
def test_every_recipe_and_a_sample_of_commands_are_decided_by_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differing(corpus(SAMPLE), monkeypatch) == []


@pytest.mark.shared
@pytest.mark.by_hand
def test_the_whole_corpus_is_decided_by_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differing(corpus(1), monkeypatch) == []


def test_fields_that_are_wrong_decide_another_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def mute(adapter: Adapter, spec: Spec, version: str | None) -> Written | tuple[Problem, ...]:
        result = PLAIN(adapter, spec, version)
        return result if isinstance(result, Written) else tuple(Problem((), found.reason) for found in result)

    recipe = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 8}
    reading = read(recipe, framework="trl", version="1.16.0", world_size=8, dataset_size=10_000)
    adapter = adapters()["open_instruct"]
    plain = convert_to(adapter, reading)
    monkeypatch.setattr(nearest_spec, "write", mute)
    assert decided(plain) != decided(convert_to(adapter, reading))
