"""Figures of the pages lie in what a script writes, and are those of the records; bars are those of the code.

`figures_in_pages.py` says what a figure looks like, docs/make_figures.py how a block is marked, CONTRIBUTING.md how
one is added.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from figures_in_pages import KINDS, NO_FIGURES, blank, figures, on_lines, writer_of
from figures_of_records import ADAPTERS, constant, lines
from make_figures import BLOCK, BLOCKS, OWN, filled

from bashread.reader import MAX_BYTES as MAX_SCRIPT_BYTES
from batchbridge.ledger.verifying import RATE_TOLERANCE, WIDEST_TOLERANCE
from batchbridge.reading import pickled, trackio_runs, wandb_runs
from batchbridge.reading.files import LARGEST_LOG, MAX_BYTES
from batchbridge.testing.equivalence import LEAST_MOVEMENT, LEDGER_RTOL, TRAJECTORY_BAR
from batchbridge_openrlhf.settings import RELEASES

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/*.md",
        "adapters/**/*.md",
        "plugins/**/*.md",
        "examples/**/*.md",
    )
    for page in ROOT.glob(pattern)
    if page.name not in ("CHANGELOG.md", "api.md") and page.parent.name != "rules"
)
"""All but the changes of releases, and the pages of rules and of the API, which are built and not tracked."""
HAND_WRITTEN = [page for page in PAGES if writer_of(page.read_text(encoding="utf-8")) is None]
RELEASE_WORDS = {7: "seven", 8: "eight", 9: "nine", 10: "ten"}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def found_in(page: Path) -> list[str]:
    return [f"{name(page)}:{line}: {kind}: {text}" for line, kind, text in figures(page.read_text(encoding="utf-8"))]


def test_no_figure_stands_outside_of_what_a_script_writes() -> None:
    assert len(HAND_WRITTEN) > 40
    found = [line for page in HAND_WRITTEN for line in found_in(page)]
    assert not found, "\n".join(["CONTRIBUTING.md says how a figure is added:", *found])


def test_every_block_and_every_page_names_a_script_that_is_there() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = list(BLOCK.finditer(text))
        assert len(blocks) == len(re.findall(r"(?m)^<!-- written by ", text)), f"{name(page)}: a block is not closed"
        for script in (*(block["script"] for block in blocks), *filter(None, [writer_of(text)])):
            assert (ROOT / script).is_file(), f"{name(page)}: {script}"


def test_the_blocks_are_what_the_records_say_now() -> None:
    named = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert filled(text) == text, f"{name(page)}: python docs/make_figures.py"
        named += [block["words"] for block in BLOCK.finditer(text) if block["script"] == OWN]
    assert sorted(named) == sorted(BLOCKS)


NOT_COMPARED = dict.fromkeys(("cli_cpu_time.md", "verl_prefix_grouper.md"), "its script leaves no JSON")
NOT_COMPARED["gpu.md"] = "its script's modules make it, which are imported below"
"""Pages of benchmarks that are not made of the JSON beside them by their script's `page(record)`, and why."""
MEASURED = [page for page in sorted((ROOT / "benchmarks").glob("*.md")) if page.name not in NOT_COMPARED]


def renderer(script: Path) -> Any:
    """The function `page` of a benchmark, without importing the frameworks that the script imports."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.Assign) and not any(isinstance(part, ast.Name) for part in ast.walk(node.value)))
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]
    for node in wanted:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    space: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), str(script), "exec"), space)
    return space["page"]


def rendered(page: Path, record: Any) -> str:
    """A benchmark's page, as its script makes it of a record."""
    script = writer_of(page.read_text(encoding="utf-8"))
    assert script is not None, f"{name(page)} names no script in its first lines"
    make = renderer(ROOT / script)
    device = ("cuda" if page.stem.endswith("_cuda") else "cpu",)
    made = make(record, *device[: len(inspect.signature(make).parameters) - 1])
    return made if isinstance(made, str) else "\n".join(made)


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.stem)
def test_the_page_of_a_benchmark_is_that_of_its_record(page: Path) -> None:
    assert page.with_suffix(".json").is_file(), f"let the script leave {page.stem}.json, or say why not in NOT_COMPARED"
    record = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert rendered(page, record).strip() == page.read_text(encoding="utf-8").strip()


def test_the_page_of_a_gpu_is_that_of_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu
    import gpu_page

    record = json.loads((ROOT / "benchmarks" / "gpu.json").read_text(encoding="utf-8"))
    assert "\n".join(gpu_page.page(gpu.ROWS, record)).strip() == (ROOT / "benchmarks/gpu.md").read_text().strip()


def test_another_number_in_a_record_is_another_page() -> None:
    page = ROOT / "benchmarks" / "plan_speed.md"
    record = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert rendered(page, {**record, "seek_bytes": 1}).strip() != page.read_text(encoding="utf-8").strip()


# ---- what is found, and what is not


PLANTED = {
    "a share": ("All of it takes less than 1 % of a step.", "It is 12.5% slower."),
    "a factor": ("It is 22 to 27 times faster.", "A miss of 10,000 times the bar.", "It runs 3x faster."),
    "a duration": ("This takes 65 s of CPU.", "It took 72 seconds.", "Below 600 ms."),
    "memory": ("It holds 54 MiB.", "1,550 MB of lines"),
    "a rate": ("It reads 245,829 completions/s.", "and writes 10,000 lines per second"),
    "an error": ("Gradients are equal to 4e-7.", "at most 2.1e-6 of its change"),
    "a ratio": (
        "A token budget is at 0.229 of native.",
        "at most 0.64 of the bar",
        "0.229 (0.220 to 0.248)",
        "a ratio of 0.32",
    ),
    "a part of a number": ("of which 0 of 3,000 differ", "23 of the 35 are enforced", "255 out of 10,131"),
    "a count": ("All 434 recipes agree.", "some 15,000 tests", "10,000 random command lines", "98 launch\nscripts"),
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PLANTED.items() for text in texts])
def test_a_planted_figure_is_found_with_its_line(kind: str, text: str) -> None:
    for page, line in ((text, 1), (f"# Page\n\n| what |\n|---|\n| {' '.join(text.split())} |\n", 5)):
        assert (line, kind) in [(at, what) for at, what, _ in figures(page)]


def test_every_kind_is_planted() -> None:
    assert PLANTED.keys() == KINDS.keys()


@pytest.mark.parametrize(
    "text",
    [
        "TRL 0.18.0 to 1.16.0, on 2026-08-20 (#1498), arXiv 2402.03300, BB-TRL-062",
        "`beta=0.04`, epsilon `1e-8`, `5 s`, and [a page](results/10%20of%2020_tests.md)",
        "a bar of 1e-5, the limit of 1 MiB, a tolerance of 1.6 %",
        "| what | bar |\n|---|---|\n| gradient | max(1e-6, 3 x float32's) |",
        "one weight off by 1 %, or a bonus 1 % larger",
        "A rollout takes 32 prompts and generates 14 completions for each.",
        "the estimator k3, times the ratio; 1/2 of 1/15; 4 ranks; a file of at most 400 lines of code",
        "```console\n$ batchbridge check\n5 findings in 3 s\n```",
        "Written by `python benchmarks/plan_speed.py --write`: 10 % of all, in 5 s.",
        "<!-- written by docs/make_figures.py trl -->\n\n0.229 of native, in 5 s\n\n<!-- end -->",
    ],
)
def test_versions_settings_bars_and_what_a_script_writes_are_no_figures(text: str) -> None:
    assert list(figures(f"{text}\n")) == []


def test_a_figure_in_the_column_beside_the_bar_or_behind_a_block_is_one() -> None:
    table = "| what | bar | measured |\n|---|---|---|\n| gradient | 1e-6 | 4e-7 |\n"
    assert [text for _, _, text in figures(table)] == ["4e-7"]
    block = "<!-- written by docs/make_figures.py trl -->\n\n5 s\n\n<!-- end -->\n"
    assert [line for line, _, _ in figures(f"{block}6 s\n{block}7 s\n")] == [6, 12]


def test_a_changed_number_in_a_block_is_noticed() -> None:
    block = f"<!-- written by {OWN} check-cost -->\n\n{BLOCKS['check-cost']()}\n\n<!-- end -->\n"
    assert filled(block) == block
    changed = re.sub(r"\d (?=%)", lambda at: f"{(int(at[0]) + 1) % 10} ", block, count=1)
    assert changed != block
    assert filled(changed) == block


def test_a_block_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="the blocks are trl, "):
        filled(f"<!-- written by {OWN} nothing -->\n<!-- end -->\n")


# ---- bars, bounds, limits and tolerances


HELD: dict[tuple[str, str], float] = {
    ("docs/cli.md", "limit of 1 MiB"): MAX_BYTES / 2**20,
    ("docs/cli.md", "limit of 4 MiB"): pickled.MAX_BYTES / 2**20,
    ("docs/cli.md", "limit of 64 MiB"): LARGEST_LOG / 2**20,
    ("docs/cli.md", "limit of 256 KiB"): MAX_SCRIPT_BYTES / 2**10,
    ("docs/cli.md", "limit of 256 MiB"): trackio_runs.MAX_BYTES / 2**20,
    ("docs/evidence.md", "bar of 85 %"): constant(ROOT / "benchmarks/strangers/measure.py", "SHARE_READ") * 100,
    ("docs/evidence.md", "limit of 10 s"): constant(ROOT / "benchmarks/strangers/measure.py", "SECONDS"),
    ("docs/fuzzing.md", "limit of 10 s"): constant(ROOT / "tests/fuzz/run.py", "CPU_SECONDS"),
    ("docs/fuzzing.md", "limit of 256 MiB"): constant(ROOT / "tests/fuzz/run.py", "PEAK_MEGABYTES"),
    ("docs/fuzzing.md", "limit of 1 GiB"): constant(ROOT / "tests/fuzz/run.py", "PROCESS_MEGABYTES") / 2**10,
    ("docs/fuzzing.md", "limit of 300 MiB"): constant(ROOT / "tests/fuzz/run.py", "GROWTH_MEGABYTES"),
    ("docs/fuzzing.md", "limit of 30 s"): constant(ROOT / "tests/fuzz/run.py", "CPU_SECONDS")
    * constant(ROOT / "tests/fuzz/crash.py", "STUCK"),
    ("docs/ledger.md", "tolerance of 1.6 %"): round(WIDEST_TOLERANCE * 100, 1),
    ("docs/ledger.md", "tolerance of 1e-6"): RATE_TOLERANCE,
    ("docs/measured.md", "tolerance of 1.6 %"): round(WIDEST_TOLERANCE * 100, 1),
    ("docs/measured.md", "tolerance of 0.01 %"): constant(ROOT / "src/batchbridge/kit/measuring.py", "_EDGE") * 100,
    ("docs/openrlhf.md", "bar of 1e-4"): 1e-4,  # rel of tests/adapters/openrlhf/native/test_again_openrlhf.py
    ("docs/openrlhf.md", "bar of 1e-5"): 1e-5,  # tests/adapters/openrlhf/native/test_critic_openrlhf.py
    ("docs/testing.md", "tolerance of 1e-4"): LEDGER_RTOL,
    ("docs/testing.md", "bar of 1e-5"): TRAJECTORY_BAR,
    ("docs/testing.md", "bar is 1e-5"): TRAJECTORY_BAR,
    ("docs/testing.md", "bound of 1 %"): LEAST_MOVEMENT * 100,
}
"""What the code has of each number that a page calls a bar, bound, limit or tolerance, in the page's unit."""


def bars(page: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(NO_FIGURES["code"], blank, BLOCK.sub(blank, page.read_text(encoding="utf-8")))
    found = re.finditer(on_lines(NO_FIGURES["a bar, bound, limit or tolerance"]), text)
    yield from ((name(page), " ".join(match[0].split())) for match in found)


def test_a_bar_in_a_page_is_the_number_that_code_enforces() -> None:
    assert {bar for page in HAND_WRITTEN for bar in bars(page)} == HELD.keys()
    for (_, text), value in HELD.items():
        (number,) = re.findall(r"[\d.]+(?:e-\d+)?", text)
        assert float(number) == pytest.approx(value), text
    assert trackio_runs.MAX_BYTES == wandb_runs.MAX_BYTES  # "a data base or an offline run"


# ---- what the prose says of sessions and records


def page_of(page: str) -> str:
    """A page with every run of white space as one blank."""
    return " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())


def test_the_page_of_openrlhf_names_what_the_session_installs_and_every_release_is_recorded() -> None:
    text = page_of("openrlhf.md")
    pinned = dict(re.findall(r"^(openrlhf|deepspeed)==(\S+)", (ROOT / "constraints/openrlhf.txt").read_text(), re.M))
    assert f"installs OpenRLHF {pinned['openrlhf']} and DeepSpeed {pinned['deepspeed']}" in text
    assert {row["version"] for row in lines(ADAPTERS / "openrlhf" / "parser_verdicts.jsonl")} == set(RELEASES)
    for release in json.loads((ADAPTERS / "openrlhf" / "figures.json").read_text(encoding="utf-8")):
        assert release in text


def test_the_page_of_easyr1_says_how_many_configurations_a_live_comparison_draws() -> None:
    source = (ADAPTERS / "easyr1" / "test_config_easyr1.py").read_text(encoding="utf-8")
    live = re.search(r'"BATCHBRIDGE_EASYR1_COUNT", "(\d+)"', source)
    assert live is not None
    assert f"`BATCHBRIDGE_EASYR1_COUNT` says how many configurations (`{live[1]}`)" in page_of("easyr1.md")


def test_the_page_of_trl_names_the_releases_that_sessions_prove() -> None:
    rows = dict(constant(ROOT / "noxfile.py", "TRL_WITH"))
    for session in ("trl_oldest", "trl"):
        pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / f"constraints/{session}.txt").read_text(), re.MULTILINE))
        rows[pins["trl"]] = (pins["transformers"], pins["accelerate"])
    text = page_of("trl.md")
    table = re.findall(r"\| (\d+\.\d+\.\d+) \| (\S+), (\S+?)(?: \(.*?\))? \| `nox -s \w+` \|", text)
    assert {release: (transformers, accelerate) for release, transformers, accelerate in table} == rows
    assert f"{RELEASE_WORDS[len(rows)]} releases are [tested](#releases)" in text


def test_what_is_called_far_beyond_the_bar_is() -> None:
    verl, openrlhf, easyr1 = (
        json.loads((ADAPTERS / name / "figures.json").read_text(encoding="utf-8"))
        for name in ("verl", "openrlhf", "easyr1")
    )
    native = [case for name, case in verl["0.9.1"]["natively"].items() if name != "measured_on"]
    alone = [case for of in openrlhf.values() for name, case in of["native"].items() if name.startswith("alone, ")]
    assert min(case["bars"] for case in (*native, *alone)) > 10_000
    on_one_rank = [of["text"]["budget_apart"] for of in easyr1.values() if "budget_apart" in of["text"]]
    assert (len(easyr1), len(on_one_rank)) == (2, 2)
    assert max(on_one_rank) <= 1.0e-6
    ends = verl["0.9.1"]["ends"]
    assert min(ends[run]["said"] for run in ("unwrapped V0", "unwrapped V1")) > 10_000 * TRAJECTORY_BAR


FIGURES = [
    *ADAPTERS.glob("*/figures.json"),
    ROOT / "tests/equivalence/figures.json",
    ROOT / "tests/equivalence/real_run.json",
    ROOT / "tests/kernels/figures.json",
]


def dates(value: Any) -> Iterator[dict[str, str]]:
    """Every commit and date in a file of figures."""
    if isinstance(value, dict):
        yield from ([value] if {"commit", "date"} == value.keys() else ())
        for inner in value.values():
            yield from dates(inner)


@pytest.mark.parametrize("file", FIGURES, ids=name)
def test_figures_say_on_which_commit_and_day_they_were_measured_and_so_does_their_page(file: Path) -> None:
    found = list(dates(json.loads(file.read_text(encoding="utf-8"))))
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert found
    for on in found:
        assert re.fullmatch(r"[0-9a-f]{12}", on["commit"]), "measured on code that no commit has"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", on["date"])
    assert any(f"`{on['commit']}`, {on['date']}" in text for on in found)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that write pages of their own, importable."""
    for folder in ("tests/equivalence/native", "tests/adapters/open_instruct"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def test_the_page_of_the_suite_is_that_of_its_figures(scripts: None) -> None:
    report = importlib.import_module("report")
    figures = json.loads((ROOT / "tests" / "equivalence" / "figures.json").read_text(encoding="utf-8"))
    learned = json.loads((ROOT / "tests" / "equivalence" / "real_run.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "equivalence.md").read_text(encoding="utf-8") == report.page(figures, learned)


def test_three_wrapped_frameworks_learn_alike_and_as_they_are_they_do_not() -> None:
    """Rewards rise in all; wrapped, the same completions are trained until float noise turns a draw; natively never."""
    learned = json.loads((ROOT / "tests" / "equivalence" / "real_run.json").read_text(encoding="utf-8"))
    for runs in learned["curves"].values():
        assert {name.partition(" ")[0] for name in runs} == {"trl", "verl", "openrlhf"}
        for curve in runs.values():
            assert len(curve) >= 100
            first, last = (sum(mean for _, mean in part) / 10 for part in (curve[:10], curve[-10:]))
            assert last > first + 0.3
    wrapped, native = learned["pairs"]["enforce"].values(), learned["pairs"]["observe"].values()
    assert len(wrapped) == len(native) == 3
    assert all(pair["first"] is None or pair["first"] > 20 for pair in wrapped)
    assert all(pair["first"] == 0 for pair in native)
    assert min(pair["equal"] for pair in wrapped) > 2 * max(pair["equal"] for pair in native)


def test_the_table_of_open_instruct_is_that_of_its_figures(scripts: None) -> None:
    figures = json.loads((ADAPTERS / "open_instruct" / "figures.json").read_text(encoding="utf-8"))
    table = importlib.import_module("oi_proofs").table(figures)
    assert table in (ROOT / "docs" / "open_instruct.md").read_text(encoding="utf-8")
