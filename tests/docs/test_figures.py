"""Figures in the pages are those of the tests and their records: counts, versions, and what native tests measured."""

from __future__ import annotations

import ast
import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from batchbridge_openrlhf.settings import RELEASES


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def constant(path: Path, name: str) -> Any:
    """A module's constant, without importing the framework that the module imports."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [name] == [ast.unparse(target) for target in node.targets]:
            return ast.literal_eval(node.value)
    raise LookupError(f"{path} has no {name}")


def listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def digits(value: float) -> str:
    """2.4e-6."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


@pytest.fixture(scope="module")
def adapters(repository: Path) -> Path:
    return repository / "tests" / "adapters"


def page(repository: Path, name: str) -> str:
    """A page with every run of white space as one blank."""
    return " ".join((repository / "docs" / name).read_text(encoding="utf-8").split())


def test_the_page_of_verl_counts_the_configurations_that_its_validator_judged(repository: Path, adapters: Path) -> None:
    text = page(repository, "verl.md")
    rows = lines(adapters / "verl" / "validator_verdicts.jsonl")
    versions = [version for version, _ in groupby(sorted(str(row["version"]) for row in rows))]
    assert f"{len(rows)} recorded verdicts of {listed(versions)} are tested" in text
    count = constant(adapters / "verl" / "native" / "test_rules_against_verl.py", "CONFIGURATIONS")
    assert f"{count:,} random configurations" in text


def test_the_page_of_verl_has_what_its_native_tests_measured(repository: Path, adapters: Path) -> None:
    text = page(repository, "verl.md")
    measured = json.loads((adapters / "verl" / "native" / "measured.json").read_text(encoding="utf-8"))["0.9.1"]
    worst = max(measured["gradient"].values(), key=lambda case: case["error"])
    assert f"at most {digits(worst['error'])} where plain float32 errs by {digits(worst['float32'])}" in text
    cases = {case.partition(", ranks")[0] for case in measured["gradient"]}
    assert f"{len(cases)} objectives" in text
    worst = max(measured["packed"].values(), key=lambda case: case["error"])
    assert f"at most {digits(worst['error'])} where plain float32 errs by {digits(worst['float32'])}; 3 obj" in text
    assert min(case["bars"] for case in measured["natively"].values()) > 10_000
    assert "more than 10,000 times the bar" in text
    apart = {other: case["said"] for other, case in measured["ends"].items()}
    assert (
        f"apart by at most {digits(max(apart[other] for other in ('one_rank', 'v0', 'sequence')))} of its change"
        in text
    )
    assert f"what the policies say is apart by {apart['unwrapped V0'] * 100:.0f} % of its change" in text


def test_the_page_of_openrlhf_counts_what_was_compared(repository: Path, adapters: Path) -> None:
    text, native = page(repository, "openrlhf.md"), adapters / "openrlhf" / "native"
    pinned = dict(
        re.findall(r"^(openrlhf|deepspeed)==(\S+)", (repository / "constraints/openrlhf.txt").read_text(), re.M)
    )
    assert f"installs OpenRLHF {pinned['openrlhf']} and DeepSpeed {pinned['deepspeed']}" in text
    assert f"on {constant(native / 'test_parser_of_openrlhf.py', 'COUNT'):,} random command lines" in text
    assert f"up to its trainer on {constant(native / 'test_building_of_openrlhf.py', 'COUNT'):,}" in text
    policies = 64 * constant(native / "test_batches_of_deepspeed.py", "PER_WORLD")
    assert f"for {policies:,} policies on 1 to 64 devices" in text
    assert f"For all {len(RELEASES)} releases from {RELEASES[0]} on" in text
    recorded = lines(adapters / "openrlhf" / "parser_verdicts.jsonl")
    assert f"{len(recorded)} command lines, of every release and with every outcome" in text
    assert {row["version"] for row in recorded} == set(RELEASES)
    assert f"`--count 400 --seed 5` compares {400 * len(RELEASES):,}" in text


def test_the_page_of_easyr1_counts_what_was_recorded_of_each_checkout(repository: Path, adapters: Path) -> None:
    text = page(repository, "easyr1.md")
    records = [lines(path) for path in sorted((adapters / "easyr1" / "recorded").glob("*.jsonl"))]
    (count,) = {len(rows) for _, *rows in records}
    checkouts = [f"{head['version']} ({head['commit'][:7]})" for head, *_ in records]
    assert f"what it said of {count} random configurations in each of {listed(checkouts)}" in text
    live = re.search(
        r'"BATCHBRIDGE_EASYR1_COUNT", "(\d+)"', (adapters / "easyr1" / "test_config_easyr1.py").read_text()
    )
    assert live is not None
    assert f"`BATCHBRIDGE_EASYR1_COUNT` says how many configurations ({int(live[1]):,})" in text


def test_the_page_of_easyr1_has_what_its_native_tests_measured(repository: Path, adapters: Path) -> None:
    text = page(repository, "easyr1.md")
    recorded = json.loads((adapters / "easyr1" / "recorded" / "figures.json").read_text(encoding="utf-8"))
    versions = [recorded[version] for version in ("0.3.3.dev0", "0.3.2")]
    for cells in (
        [f"{of['steps']} steps, at most {digits(of['error'])}, {of['of_the_bar']:.2f} of the bar" for of in versions],
        [f"{of['objectives']}" for of in versions],
        [f"{of['seq_bars']:,.0f}; {of['floors_bars']:,.0f}" for of in versions],
        [f"{of['unclamped_bars']:,.0f}" for of in versions],
        [f"{of['moved'] * 100:.1f} %" for of in versions],
        [digits(of["ranks_apart"]) for of in versions],
        ["; ".join(digits(of[f"{name}_ranks_apart"]) for name in ("seq", "sgd", "like")) for of in versions],
        [f"{of['unwrapped_apart'] * 100:.0f} %" for of in versions],
    ):
        assert f"| {' | '.join(cells)} |" in text


def test_the_page_of_open_instruct_counts_the_published_commands(repository: Path, adapters: Path) -> None:
    text = page(repository, "open_instruct.md")
    counted = json.loads((adapters / "open_instruct" / "published.json").read_text(encoding="utf-8"))
    assert f"of {counted['commands']} published commands {counted['stale']} pass such flags" in text
    assert f"among them {counted['stale_with_both']} with both" in text
    assert f"{counted['stale_and_valid_without']} of the {counted['stale']} are valid" in text


def test_the_page_of_openrlhf_has_what_its_native_tests_and_its_recorded_runs_measured(
    repository: Path, adapters: Path
) -> None:
    text, recorded = page(repository, "openrlhf.md"), adapters / "openrlhf" / "recorded"
    measured = json.loads((recorded / "measured.json").read_text(encoding="utf-8"))
    releases = sorted(measured, key=lambda release: [int(part) for part in release.split(".")])
    cases = [(name, case) for figures in measured.values() for name, case in figures.items()]
    gradients = [(name, case) for name, case in cases if name.startswith("gradient of ")]
    worst = max(case["of_the_bar"] for _, case in gradients)
    assert f"on each of {listed(releases)}" in text
    assert f"at most {worst} of the bar" in text
    assert f"{len({name.rpartition(', ranks')[0] for name, _ in gradients})} objectives" in text
    least = min(case["bars"] for name, case in cases if name.startswith("alone, "))
    assert f"at least {least:,.0f} times the bar" in text
    fit = max((case for name, case in cases if name in ("fit, own", "fit, passes")), key=lambda case: case["error"])
    assert f"at most {digits(fit['error'])} where plain float32 errs by {digits(fit['float32'])}" in text
    newest = releases[-1]
    apart = measured[newest]["fit, other micro-batches"]["apart"]
    assert f"what it says, within {digits(apart)} of its change" in text
    assert f"({newest})" in text
    for file in recorded.glob("runs_*.json"):
        assert file.stem.removeprefix("runs_") in text
    figures = json.loads((recorded / f"runs_{newest}.json").read_text(encoding="utf-8"))["figures"]
    ends = max(figures["apart: one rank"], figures["apart: zero 3"])
    assert f"parameters' movement within {digits(ends)}, itself {figures['moved'] * 100:.1f} % of their norm" in text
    assert f"ends {figures['apart: unwrapped'] * 100:.0f} % of the movement away" in text


def test_the_page_of_trl_names_the_releases_that_sessions_prove(repository: Path) -> None:
    rows = dict(constant(repository / "noxfile.py", "TRL_WITH"))
    for name in ("trl_oldest", "trl"):
        pins = dict(re.findall(r"^(\S+)==(\S+)$", (repository / f"constraints/{name}.txt").read_text(), re.MULTILINE))
        rows[pins["trl"]] = (pins["transformers"], pins["accelerate"])
    text = page(repository, "trl.md")
    table = re.findall(r"\| (\d+\.\d+\.\d+) \| (\S+), (\S+?)(?: \(.*?\))? \| `nox -s \w+` \|", text)
    assert {release: (transformers, accelerate) for release, transformers, accelerate in table} == rows
    assert f"{COUNTS[len(rows)]} releases are [tested](#releases)" in text


COUNTS = {7: "seven", 8: "eight", 9: "nine", 10: "ten"}


def test_the_page_of_easyr1_says_how_far_a_run_cut_by_tokens_ends_from_the_others(repository: Path) -> None:
    recorded = repository / "tests" / "adapters" / "easyr1" / "recorded"
    ends = [json.loads(file.read_text(encoding="utf-8"))["ends_apart"] for file in sorted(recorded.glob("runs_*.json"))]
    assert len(ends) == 2
    assert max(end["stock entry on one rank"] for end in ends) <= 1.0e-6
    assert "say at the end is within 1.0e-6 of its change" in page(repository, "easyr1.md")
