"""`--html`: pages that are well-formed, say what the text says, and that no configuration's text can reach into."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import batchbridge
from batchbridge.contract.reading import Provenance, Reading
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.meaning.spec import walk
from batchbridge_on_cpu.scripts import module_at

for library in ("jinja2", "vl_convert"):
    pytest.importorskip(library, reason="the extra `html` is not installed")

Run = Callable[..., tuple[int, str, str]]
HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&lt;{{ 7 * 7 }}\x1b[31m\u202e"
TRAINED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 8, "seed": 1}


def _load(name: str) -> ModuleType:
    return module_at(Path(__file__).parent / f"{name}.py", name)


seen = _load("pages_as_read")


def page_of(reading: Reading, name: str = "recipe.yaml") -> str:
    from batchbridge.render import html

    return html.explanation(name, reading)


def of_trl(**options: Any) -> batchbridge.reports.Explanation:
    return batchbridge.explain(TRAINED, framework="trl", version="1.16.0", **{"world_size": 2, **options})


def whole(found: Any) -> str:
    from batchbridge.render import html

    return html.explanation(found.name, found.reading, found.enforcement, judged=found.judged, devices=found.devices)


CASES = {
    "valid": lambda: of_trl(dataset_size=100),
    "invalid": lambda: of_trl(world_size=3),
    "no version": lambda: batchbridge.explain(TRAINED, framework="trl", world_size=2),
    "no devices": lambda: batchbridge.explain(TRAINED, framework="trl", version="1.16.0"),
    "nothing": lambda: batchbridge.explain({}, framework="trl", version="1.16.0"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_page_of_any_verdict_has_no_fault(case: str) -> None:
    found = CASES[case]()
    page = whole(found)
    assert seen.faults(page) == []
    tree = seen.read(page)
    (badge,) = [element for element in tree.all("strong") if element.attributes["class"].startswith("badge")][:1]
    assert badge.text == found.verdict


def test_the_check_finds_faults() -> None:
    page = whole(of_trl())
    tampered = {
        "<h1>": "<h1></h1><h1>",
        "</main>": "",
        'role="img"': 'role="none"',
        'id="h-meaning"': 'id="other"',
        "<main": "<script></script><main",
        '<section id="meaning"': '<section onclick="x" id="meaning"',
        "<h2": "<h4></h4><h2",
        ' scope="row"': "",
        '<html lang="en">': "<html>",
        'href="#fields"': 'href="https://example.org"',
    }
    for there, instead in tampered.items():
        assert there in page
        assert seen.faults(page.replace(there, instead, 1)), there


def test_the_page_says_every_field_with_value_unit_and_origin() -> None:
    found = of_trl(dataset_size=100)
    tree = seen.read(whole(found))
    by_id = {element.attributes["id"]: element for element in tree.all() if "id" in element.attributes}
    assert found.reading.spec is not None
    for path, value, quantity in walk(found.reading.spec):
        tip = by_id[f"from-{path}"]
        assert tip.attributes["role"] == "tooltip"
        assert f"Unit: {quantity.unit}." in tip.text
        if (origin := found.reading.provenance.get(path)) is not None:
            assert " ".join(origin.detail.split()) in tip.text
        (row,) = [row for row in tree.all("tr") if tip in list(row.all())]
        if isinstance(value, int) and not isinstance(value, bool):
            assert f"{value:,}" in row.text
    buttons = {element.attributes["aria-describedby"] for element in tree.all("button")}
    assert buttons == {name for name in by_id if name.startswith("from-")}  # each is reached by the keyboard


def test_findings_stand_with_their_places_and_ways_out() -> None:
    found = CASES["invalid"]()
    text = seen.read(whole(found)).text
    for finding in found.reading.findings:
        assert finding.code in text
        assert " ".join(finding.message.split()) in text
        for fix in finding.fixes:
            assert " ".join(fix.text.split()) in text


def test_the_lanes_say_their_numbers_in_words() -> None:
    tree = seen.read(whole(of_trl(dataset_size=100)))
    titles = [svg.children[0].text for svg in tree.all("svg")]
    lanes = (
        "rollout: 4 prompts x 8 = 32 completions; optimizer steps: 1 step, 32 completions each; "
        "devices: 2, 16 completions each in a step; micro-batches: 4 on a device, 4 completions each"
    )
    assert titles[:2] == [lanes, lanes]


def hostile_reading() -> Reading:
    spec = of_trl(dataset_size=100).reading.spec
    where = (Where(HOSTILE, HOSTILE, HOSTILE, 3),)
    finding = Finding("BB-TRL-001", "warning", "never", HOSTILE, where, (Fix(HOSTILE),), HOSTILE, HOSTILE)
    origin = Provenance((HOSTILE, "b"), HOSTILE, "file", HOSTILE, HOSTILE, 3)
    return Reading(
        framework=HOSTILE,
        framework_version=HOSTILE,
        spec=spec,
        provenance={"rollout.completions_per_prompt": origin},
        findings=(finding,),
        dataset_size=100,
    )


def assert_harmless(page: str) -> None:
    assert seen.faults(page) == []
    assert "onerror=alert(1)>" not in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page)
    text = seen.read(page).text
    assert "<img src=x onerror=alert(1)>" in text
    assert "{{ 7 * 7 }}" in text


def test_no_text_of_a_configuration_becomes_a_part_of_the_page() -> None:
    assert_harmless(page_of(hostile_reading(), name=HOSTILE))


def test_no_text_of_two_configurations_becomes_a_part_of_their_page() -> None:
    from batchbridge.render import html

    a, b = hostile_reading(), of_trl().reading
    assert_harmless(html.comparison((HOSTILE, HOSTILE), batchbridge.diff(a, b)))


def test_a_long_value_is_cut() -> None:
    page = page_of(hostile_reading(), name="x" * 100_000)
    assert "x" * 500 not in page


def test_the_style_is_the_only_one_that_a_browser_takes() -> None:
    import base64
    import hashlib

    page = whole(of_trl())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_explain_writes_the_page_and_says_the_text(run: Run, recipe: Path) -> None:
    plain = run("explain", str(recipe))
    assert run("explain", str(recipe), "--html", "page.html") == plain
    page = Path("page.html").read_text(encoding="utf-8")
    assert seen.faults(page) == []
    assert "recipe.yaml" in seen.read(page).text


def test_diff_writes_the_page_and_says_the_text(run: Run, recipe: Path) -> None:
    words = ("diff", str(recipe), "--set-b", "toy.step=4")
    plain = run(*words)
    assert run(*words, "--html", "page.html") == plain
    assert plain[0] == 3
    page = Path("page.html").read_text(encoding="utf-8")
    assert seen.faults(page) == []
    text = seen.read(page).text
    assert "not equivalent" in text
    assert "optimizer_step.completions_per_step" in text


def test_without_the_extra_the_page_of_a_ledger_names_it_and_a_reading_has_its_page(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import batchbridge.render

    monkeypatch.delitem(sys.modules, "batchbridge.render.charts", raising=False)
    monkeypatch.delattr(batchbridge.render, "charts", raising=False)
    imported = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "vl_convert":
            raise ModuleNotFoundError(f"No module named {name!r}", name="vl_convert")
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    folder = _load("test_ledger_commands").write(tmp_path / "a", (3, 4))
    code, _, err = run("ledger", "show", folder, "--html", "ledger.html")
    assert code == 64
    assert "--html needs vl-convert-python: pip install 'batchbridge[html]'" in err
    assert not Path("ledger.html").exists()
    code, _, err = run("explain", str(recipe), "--html", "page.html")
    assert code != 64, err
    assert Path("page.html").exists()


def test_a_page_that_cannot_be_written_is_an_error_of_usage(run: Run, recipe: Path) -> None:
    code, _, err = run("explain", str(recipe), "--html", "absent/page.html")
    assert code == 64
    assert "--html absent/page.html: No such file or directory" in err


def test_a_command_without_html_imports_no_library_of_it(run: Run, recipe: Path) -> None:
    import subprocess

    code = "import sys; from batchbridge.cli.main import main; main(['explain', 'recipe.yaml']); "
    code += "print([name for name in ('jinja2', 'vl_convert', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_page_of_a_ledger_has_every_figure_as_a_chart_and_in_numbers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchbridge.ledger.reading import Ledger
    from batchbridge.ledger.summary import FIGURES, series, summarise

    monkeypatch.chdir(tmp_path)
    folder = _load("test_ledger_commands").write(tmp_path / "a", (3, 4))
    plain = run("ledger", "show", folder, "--summary")
    assert run("ledger", "show", folder, "--html", "page.html") == plain
    page = Path("page.html").read_text(encoding="utf-8")
    assert seen.faults(page) == []
    tree = seen.read(page)
    recorded = {name: list(series(summarise(Ledger(folder)).bins, name)) for name in FIGURES}
    wanted = [FIGURES[name].title for name, points in recorded.items() if points]
    drawn = [figure for figure in tree.all("figure") if list(figure.all("table"))]
    assert [next(figure.all("h3")).text for figure in drawn] == wanted
    for figure in drawn:
        rows = [[cell.text for cell in row.children] for row in figure.all("tr")]
        assert [row[0] for row in rows[1:]] == ["0", "1"]
    assert "7" in next(drawn[0].all("tbody")).text


@pytest.mark.parametrize("value", [0, 10**400])
def test_the_page_of_a_ledger_with_a_spec_that_cannot_be_reckoned_with_has_no_lanes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _load("test_ledger_commands").write(tmp_path / "a", (3, 4))
    file = Path(folder, "rank-00000.jsonl")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"tensor_parallel":1', f'"tensor_parallel":{value}', 1), encoding="utf-8")
    assert run("ledger", "show", folder, "--html", "page.html")[0] == 0
    assert seen.faults(Path("page.html").read_text(encoding="utf-8")) == []


def test_a_chart_has_its_numbers(tmp_path: Path) -> None:
    from batchbridge.ledger.summary import Figure, FigureRange
    from batchbridge.render import charts

    tokens = Figure("Tokens <b>", "tokens in a step", "tokens", lambda *_: ())
    points = [(0, 0, FigureRange(1, 2, 4)), (1, 1, FigureRange(2, 3, 4))]
    svg = charts.over_steps(tokens, points)
    assert svg.count("<title>") == 1
    assert "<title>Tokens &lt;b&gt;, tokens in a step, over optimizer steps 0 to 1</title>" in svg
    assert svg != charts.over_steps(tokens, [points[0], (1, 1, FigureRange(3, 3, 4))])
    assert len(re.findall(r'aria-roledescription|role="graphics', svg)) == 0


def labels(svg: str) -> list[str]:
    """The words of a chart that are drawn: titles and ticks of its axes."""
    return re.findall(r"<text [^>]*>([^<]+)</text>", svg)


@pytest.mark.parametrize(
    ("name", "value", "last", "wanted"),
    [
        ("staleness", 0, 1, ["0", "1"]),
        ("completions", 8, 30, ["0", "2", "4", "6", "8"]),
        ("learning_rate", 1e-6, 3, ["0.0e+0", "2.0e-7", "4.0e-7", "6.0e-7", "8.0e-7", "1.0e-6"]),
    ],
)
def test_an_axis_has_its_unit_and_no_tick_twice(name: str, value: float, last: int, wanted: list[str]) -> None:
    from batchbridge.ledger.summary import FIGURES, FigureRange
    from batchbridge.render import charts

    points = [(step, step, FigureRange(value, value, value)) for step in range(last + 1)]
    drawn = labels(charts.over_steps(FIGURES[name], points))
    x, y = drawn[: drawn.index("optimizer step")], drawn[drawn.index("optimizer step") + 1 :]
    assert y[-1] == FIGURES[name].axis
    assert y[:-1] == wanted
    assert len(set(x)) == len(x) <= 6
    assert x[0] == "0"


def test_a_chart_has_a_line_where_the_run_was_resumed() -> None:
    from batchbridge.ledger.summary import FIGURES, FigureRange
    from batchbridge.render import charts

    points = [(step, step, FigureRange(1, 2, 4)) for step in range(10)]
    plain = charts.over_steps(FIGURES["learning_rate"], points)
    marked = charts.over_steps(FIGURES["learning_rate"], points, [4, 400])
    assert plain.count("stroke-dasharray") == 0
    assert marked.count("stroke-dasharray") == 1
    assert "; resumed at 4</title>" in marked


def test_the_page_of_a_comparison_marks_the_words_that_differ_and_draws_on_one_scale(toy_site: Path) -> None:
    from batchbridge.render import html

    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 8}
    a = batchbridge.read(sizes, framework="trl", version="1.16.0", world_size=2)
    b = batchbridge.read(sizes, framework="trl", version="1.16.0", world_size=4)
    tree = seen.read(html.comparison(("a", "b"), batchbridge.diff(a, b)))
    assert [mark.text for mark in tree.all("mark")] == ["4", "32", "32", "4", "2", "8", "64", "64", "8", "4"]
    same = seen.read(html.comparison(("a", "a"), batchbridge.diff(a, a)))
    assert list(same.all("mark")) == []
    boxes = [[box.attributes["width"] for box in svg.all("rect")] for svg in tree.all("svg")][::2]
    widths = [max(float(width) for width in of_side if "%" not in width) for of_side in boxes]
    assert widths[0] * 2 == pytest.approx(widths[1], rel=0.02)


@pytest.mark.parametrize(("tokens", "equal"), [((3, 4), True), ((3, 5), False)])
def test_the_page_of_two_ledgers_says_where_they_part_and_draws_both(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: tuple[int, int], equal: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    ledgers = _load("test_ledger_commands")
    a, b = ledgers.write(tmp_path / "a", (3, 4)), ledgers.write(tmp_path / "b", tokens)
    plain = run("ledger", "diff", a, b)
    assert plain[0] == (0 if equal else 3)
    assert run("ledger", "diff", a, b, "--html", "page.html")[:2] == plain[:2]
    page = Path("page.html").read_text(encoding="utf-8")
    assert seen.faults(page) == []
    tree = seen.read(page)
    titles = [one.text for one in tree.all("h2")]
    assert titles[0] == ("No step differs" if equal else f"The first difference: optimizer step {_step_of(plain[1])}")
    figures = list(tree.all("figure"))
    assert "Response tokens" in [next(figure.all("h3")).text for figure in figures]
    named = [next(figure.all("title")).text for figure in figures]
    assert all("of two runs" in name for name in named)
    assert all(("they differ from" in name) is not equal for name in named)


def _step_of(said: str) -> str:
    return said.partition("optimizer step ")[2].partition(":")[0]
