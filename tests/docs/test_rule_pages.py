"""The built pages of rules are what `batchbridge rule` says; a page's configuration breaks its rule, and its fixes mend
it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from batchbridge.contract import plugins
from batchbridge.diagnosis import doctor
from batchbridge.kit.error_texts import quotations
from batchbridge.reading.problems import PROBLEMS, PROBLEMS_OF_PLUGINS
from batchbridge.render.rule import page as shown
from batchbridge.rule_page import EVERY_FRAMEWORK, RulePage, broken_by, known_rules, read_example, rule
from batchbridge.rules import core_rules
from batchbridge_on_cpu.scripts import module_at

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]
NOT_IN_A_FILE = ("BB-TRL-054",)
"""Rules about a trainer's own configuration object: no file breaks them."""


make_rules, rule_examples = (
    module_at(ROOT / "docs/make_rules.py"),
    module_at(ROOT / "tests/repository/rule_examples.py"),
)
PAGES: dict[str, RulePage] = {
    code: page
    for code, framework in known_rules().items()
    if framework in make_rules.OURS and (page := rule(code)) is not None
}
ALL = sorted({*PAGES, *PROBLEMS, *PROBLEMS_OF_PLUGINS, *(row.code for row in core_rules.RULES)})
RETIRED = [code for code, page in PAGES.items() if any(getattr(row, "retired", "") for row in page.rows)]
WITH_AN_EXAMPLE = [code for code in PAGES if code not in {*NOT_IN_A_FILE, *RETIRED}]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages, where one of a rule that is gone has been."""
    folder = tmp_path_factory.mktemp("site") / "rules"
    folder.mkdir()
    (folder / "BB-TRL-999.md").write_text("# BB-TRL-999\n", encoding="utf-8")
    make_rules.build(folder)
    return folder


def test_every_rule_gets_its_page_and_no_other_stays(built: Path) -> None:
    assert {file.name for file in built.iterdir()} == {"index.md", *(f"{code}.md" for code in ALL)}
    for code, page in PAGES.items():
        assert (built / f"{code}.md").read_text(encoding="utf-8") == make_rules.escaped(shown(page))


def test_every_code_that_a_reader_or_a_plugin_finds_has_a_page_with_the_words_of_the_documentation() -> None:
    """`check` names `batchbridge rule CODE` under whatever it has found."""
    found: dict[str, str] = {}
    for name in ("cli.md", "plugins.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        rows = re.findall(r"^\| (BB0\d\d) \| (.*) \|$", text, re.MULTILINE)
        found |= {code: said.replace(" | ", "; ") for code, said in rows}
    assert found == {**PROBLEMS, **PROBLEMS_OF_PLUGINS}
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")]
    named = {code for text in sources for code in re.findall(r'"(BB0\d\d)"', text)}
    assert named <= {*found, *known_rules()}
    for code, said in found.items():
        page = rule(code)
        assert page is not None
        assert page.rows or page.finding is not None or page.summary == said


def test_the_index_links_to_every_page_and_to_nothing_else(built: Path) -> None:
    links = re.findall(r"\]\((.+?)\)", (built / "index.md").read_text(encoding="utf-8"))
    assert sorted(links) == [f"{code}.md" for code in ALL]


def test_the_index_is_by_framework_and_severity_and_has_every_title(built: Path) -> None:
    sections = (built / "index.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert [section.partition("\n")[0].lower() for section in sections] == [EVERY_FRAMEWORK, *make_rules.OURS]
    for section in sections:
        rows = re.findall(r"^\| \[(BB\S+)\]\(\S+\) \| (.+?) \| (\w+) \| (.*) \|$", section, re.MULTILINE)
        kinds = [kind for _, _, kind, _ in rows]
        assert kinds == sorted(kinds, key=("error", "undecided", "warning", "note").index)
        assert len(set(kinds)) > 1
        assert [code for code, title, *_ in rows if (page := rule(code)) is None or page.title != title] == []


def test_every_page_says_title_what_why_example_and_what_to_use_instead(built: Path) -> None:
    text = (built / "BB-TRL-021.md").read_text(encoding="utf-8")
    assert text.startswith("# BB-TRL-021: rollout tears groups\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What", "Why", "Example", "Use instead", "Versions"]
    for code in ALL:
        page = (built / f"{code}.md").read_text(encoding="utf-8")
        assert re.match(rf"# {code}: \S.+\n\n.+, (error|undecided|warning|note)", page), code
        assert "\n## Why\n" in page, code


def test_no_page_has_a_mark_within_a_name(built: Path) -> None:
    """Markdown would make `__post_init__` slanted: every underscore at a word's end is escaped."""
    prose = {code: re.sub(r"(?ms)^```.*?^```$", "", (built / f"{code}.md").read_text("utf-8")) for code in ALL}
    loose = re.compile(r"(?<!\\)_(?![A-Za-z0-9])|(?<![A-Za-z0-9\\])_")
    assert [code for code, text in prose.items() if loose.search(text)] == []
    assert sum("post\\_init" in text or "post_init" in text for text in prose.values()) > 40
    assert loose.search("GRPOConfig.\\__post_init_\\_")


def test_a_page_links_to_nothing(built: Path) -> None:
    """What looks like a link in a message is not one of Markdown's."""
    prose = {code: re.sub(r"(?ms)^```.*?^```$", "", (built / f"{code}.md").read_text("utf-8")) for code in PAGES}
    assert [code for code, text in prose.items() if re.search(r"(?<!\\)\[[^\]]*\]\(", text)] == []


def test_every_rule_of_every_adapter_has_a_page() -> None:
    rows = {row.code for name in make_rules.OURS for row in plugins.rows(plugins.adapters()[name])}
    assert rows <= set(PAGES)
    assert len(PAGES) > 320
    assert {framework for page in PAGES.values() for framework in [page.framework]} == set(make_rules.OURS)


@pytest.mark.parametrize("code", WITH_AN_EXAMPLE)
def test_the_configuration_breaks_the_rule(code: str) -> None:
    page = PAGES[code]
    assert page.example is not None
    assert code in broken_by(read_example(page.framework, page.example))
    assert page.summary


@pytest.mark.parametrize("code", WITH_AN_EXAMPLE)
def test_the_page_shows_the_configuration_that_was_read(code: str) -> None:
    page = PAGES[code]
    assert page.example is not None
    ((language, block),) = re.findall(r"^```(\w+)\n(.*?)^```$", shown(page), re.MULTILINE | re.DOTALL)
    if language == "sh":
        assert shlex.split(block.replace("\\\n", " ")) == list(page.example["argv"])
    elif language == "python":
        assert block == page.example["program"]
    else:
        assert (yaml.safe_load(block) or {}) == page.example["values"]


@pytest.mark.parametrize("code", RETIRED)
def test_a_retired_rule_says_so_and_where_to_look_and_doctor_still_knows_its_text(code: str) -> None:
    page = PAGES[code]
    assert page.example is None
    assert "retired, and its code is not used again" in shown(page)
    assert "check --native" in shown(page)
    for row in page.rows:
        for part in str(row.native).removesuffix("; TypeError where the option is not given").split("; or: "):
            found = doctor(part if ": " in part else f"ValueError: {part}") if "You have set both" not in part else ()
            assert "You have set both" in part or code in {code for one in found for code in one.codes}


def test_the_retired_rules_are_these() -> None:
    trl = ("010", "013", "015", "082", "083", "084", "085", "088", "089")
    verl = ("016", "018", "064")
    assert sorted(RETIRED) == ["BB-ORL-019", *(f"BB-TRL-{one}" for one in trl), *(f"BB-VERL-{one}" for one in verl)]


FIXED = [code for code in WITH_AN_EXAMPLE if (found := PAGES[code].finding) and any(fix.changes for fix in found.fixes)]


@pytest.mark.parametrize("code", FIXED)
def test_every_fix_that_names_settings_mends_the_configuration(code: str) -> None:
    page = PAGES[code]
    assert page.finding is not None
    assert page.example is not None
    fixes = [fix for fix in page.finding.fixes if fix.changes]
    not_mending = [fix.text for fix in fixes if not rule_examples.mended(page.framework, code, page.example, fix)]
    assert not_mending == []


def test_most_errors_have_a_fix_that_is_executed() -> None:
    errors = [code for code, page in PAGES.items() if page.finding is not None and page.finding.severity == "error"]
    assert len(set(FIXED) & set(errors)) > len(errors) / 2


def test_an_example_that_breaks_nothing_is_caught() -> None:
    example = {"values": {"num_generations": 8}, "version": "1.16.0", "world_size": 1}
    assert "BB-TRL-021" not in broken_by(read_example("trl", example))


@pytest.mark.parametrize("code", [code for code in WITH_AN_EXAMPLE if PAGES[code].finding is not None])
def test_doctor_knows_the_message_of_the_example(code: str) -> None:
    native = getattr(PAGES[code].finding, "native", None)
    if list(quotations(native)):
        assert doctor(str(native))


@pytest.fixture
def run(typed: Run) -> Run:
    return typed


def test_the_command_prints_the_page(run: Run) -> None:
    code, out, _ = run("rule", "bb-trl-021")
    assert (code, out) == (0, shown(PAGES["BB-TRL-021"]))
    assert "## Example" in out
    assert "## Use instead" in out


def test_the_command_has_json(run: Run) -> None:
    (shown,) = json.loads(run("rule", "BB-VERL-004", "--json")[1])["results"]
    assert shown["code"] == shown["finding"]["code"] == "BB-VERL-004"
    assert shown["rows"][0]["severity"] == "error"


def test_a_code_that_nobody_knows_is_a_usage_error_with_the_nearest(run: Run) -> None:
    code, _, err = run("rule", "BB-TRL-0621")
    assert code == 64
    assert "BB-TRL-062" in err


def test_a_page_says_what_a_text_holds_and_no_mark_of_markdown_comes_of_it() -> None:
    assert make_rules.marks("A.__post_init__ _a_b") == "A.\\_\\_post_init\\_\\_ \\_a_b"
    assert make_rules.escaped("a <b> *c*\n```sh\na <b> *c*\n```\n") == "a &lt;b> \\*c\\*\n```sh\na <b> *c*\n```\n"
