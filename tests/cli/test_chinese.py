"""Chinese texts: the catalogue is whole and in use, its language is chosen in one way, and what programs read stays."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from string import Formatter

import pytest

import batchbridge
from batchbridge.cli._tables import _folded, _table_on_terminal, coloured
from batchbridge.contract import plugins
from batchbridge.contract.error_text import HOUSE, titles_in
from batchbridge.meaning.findings import KINDS
from batchbridge.render import words
from batchbridge.render.text import plain_table
from batchbridge.render.words import Chinese, cells, chinese, folded, language_of, say, spoken

SOURCE = Path(batchbridge.__file__).parent
RECIPE = "per_device_train_batch_size: 16\ngradient_accumulation_steps: 4\nnum_generations: 14\n"
UNDER = {"framework": "trl", "version": "1.16.0"}
Typed = Callable[..., tuple[int, str, str]]


def literals(text: str) -> Iterator[str]:
    """The texts in a module: constants, and names in words (`tokens_per_step`)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (node.value, node.value.upper(), node.value.replace("_", " "))


def said_in(text: str) -> Iterator[str]:
    """The sentences that a module says outright, `say("...")`, and the nouns that it counts, `count(number, "...")`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
            continue
        named = {"say": node.args[0], "said": node.args[0], "count": node.args[-1 if len(node.args) < 3 else 1]}
        found = named.get(node.func.id)
        for one in (found.body, found.orelse) if isinstance(found, ast.IfExp) else (found,):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield one.value


SPOKEN = ("text.py", "headline.py", "findings.py", "between.py", "lanes.py", "words.py")
"""Files of `render` whose every sentence is said in both languages."""


def sources() -> str:
    """Every module that may make a word of a first screen."""
    folders = ("render", "cli", "comparing", "meaning", "contract", "reading")
    return "\n".join(file.read_text("utf-8") for folder in folders for file in sorted((SOURCE / folder).glob("*.py")))


def fields(sentence: str) -> list[str]:
    return sorted(name for _, name, _, _ in Formatter().parse(sentence) if name is not None)


def indent(sentence: str) -> int:
    return len(sentence) - len(sentence.lstrip(" "))


def wrong(catalogue: Chinese, known: set[str], needed: set[str], titles: set[str]) -> Iterator[str]:
    """The faults of a catalogue. known: texts in the sources; needed: what is said outright; titles: of all rules, of
    which a new one stands in English until it has its row."""
    for english, said in catalogue.sentences.items():
        if fields(english) != fields(said):
            yield f"{english!r} has other placeholders"
        if english.startswith("  ") and indent(english) != indent(said):
            yield f"{english!r} stands elsewhere"
        if english not in known:
            yield f"{english!r} is said nowhere"
    yield from (f"{unit!r} is counted nowhere" for unit in catalogue.units if unit not in known)
    yield from (
        f"{one!r} has no Chinese" for one in sorted(needed) if one not in {**catalogue.sentences, **catalogue.units}
    )
    yield from (f"{title!r} is no rule's title" for title in sorted(catalogue.titles.keys() - titles))


@pytest.fixture(scope="module")
def facts() -> dict[str, set[str]]:
    """The arguments of `wrong`, of the sources as they are."""
    needed = {one for name in SPOKEN for one in said_in((SOURCE / "render" / name).read_text("utf-8"))}
    rows = {*titles_in(HOUSE).values(), *(row for one in plugins.adapters().values() for row in one.titles().values())}
    titles = {row.title for row in rows}
    for file in (Path(__file__).parents[2] / "plugins").glob("*/src/*/titles.json"):
        titles |= {title for title, _ in json.loads(file.read_text("utf-8")).values()}
    return {"known": {*literals(sources()), *KINDS}, "needed": needed, "titles": titles}


def test_the_catalogue_is_whole_and_every_sentence_is_said(facts: dict[str, set[str]]) -> None:
    assert len(facts["needed"]) > 100
    assert list(wrong(chinese(), **facts)) == []


@pytest.mark.parametrize(
    ("table", "english", "said"),
    [
        ("sentences", "A sentence that nobody says.", "没有人说的句子。"),
        ("sentences", "no version was named", "没有指定 {version}"),
        ("sentences", "  at: {places}", "  位置：{place}"),
        ("sentences", "  at: {places}", "位置：{places}"),
        ("sentences", "no findings", None),
        ("units", "prompt", None),
        ("units", "bushel", "个斗"),
        ("titles", "nobody's rule", "规则"),
    ],
)
def test_a_fault_of_the_catalogue_is_found(
    table: str, english: str, said: str | None, facts: dict[str, set[str]]
) -> None:
    rows = {name: value for name, value in getattr(chinese(), table).items() if name != english}
    rows |= {} if said is None else {english: said}
    assert len(list(wrong(chinese()._replace(**{table: rows}), **facts))) == 1


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.GBK"}, "zh"),
        ({"LANG": "zh"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zha_CN"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
        ({"LC_CTYPE": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_the_environment_says_a_language(environment: Mapping[str, str], language: str) -> None:
    assert language_of(environment) == language


def test_tests_are_english_whoever_runs_them() -> None:
    assert language_of(os.environ) == "en"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = Path("recipe.yaml")
    file.write_text(RECIPE, encoding="utf-8")
    return file


CHECK = ("check", "recipe.yaml", "--framework-version", "1.16.0", "--gpus", "8")


def test_lang_wins_over_the_environment(here: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    english = typed(*CHECK)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    said = typed(*CHECK)
    assert "recipe.yaml  trl 1.16.0  无效  1 个错误" in said[1]
    assert typed(*CHECK, "--lang", "zh") == said
    assert typed(*CHECK, "--lang", "en") == english
    assert said[0] == english[0] == 2


def test_python_says_it_in_the_language_that_is_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = batchbridge.check(here, world_size=8, **UNDER)
    english = str(found)
    assert "规则：rollout 拆散了组（batchbridge rule BB-TRL-021）" in found.text(lang="zh")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert str(found) == found.text(lang="zh")
    assert found.text(lang="en") == english
    with pytest.raises(ValueError, match="'fr' is no language"):
        found.text(lang="fr")


@pytest.mark.parametrize("form", ["json", "sarif", "github", "concise", "gitlab", "junit"])
def test_what_programs_read_has_no_language(form: str, here: Path, typed: Typed) -> None:
    words = (*CHECK, "--output-format", form)
    assert typed(*words, "--lang", "zh") == typed(*words, "--lang", "en")


@pytest.mark.parametrize(
    "more",
    [
        ("explain", "recipe.yaml", "--framework-version", "1.16.0", "--gpus", "7", "--dataset-size", "8000"),
        ("diff", "recipe.yaml", "--framework-version", "0.18.0", "--version-b", "1.16.0", "--world-size", "7"),
        ("convert", "recipe.yaml", "--framework-version", "1.16.0", "--gpus", "7", "--to", "verl", "--dry-run"),
        ("scale", "recipe.yaml", "--framework-version", "1.16.0", "--from", "7", "--gpus", "9"),
        ("doctor", "only support equal chunk. Got size of DataProto 500 and chunk 96"),
        ("check", "recipe.yaml"),
        CHECK,
    ],
)
def test_both_languages_say_the_same_numbers_keys_and_versions(
    more: tuple[str, ...], here: Path, typed: Typed, facts: dict[str, set[str]]
) -> None:
    """And no line mixes them: without what is quoted, a line with Chinese has no English word."""
    english, said = typed(*more, "--lang", "en"), typed(*more, "--lang", "zh")
    assert english[0] == said[0]
    numbers, keys = r"(?<![A-Za-z_])\d[\d.,]*(?<![.,])", r"\b[a-z]+_[a-z_]+\b|--[a-z-]+|BB-[A-Z]+-\d+"
    for pattern in (numbers, keys):
        assert sorted(re.findall(pattern, said[1])) == sorted(re.findall(pattern, english[1])), pattern
    same = {word for line in english[1].splitlines() for word in re.split(r"[\s：（），；]+", line)}
    first, second = said[1].splitlines()[:2]
    strange = [word for word in re.findall(r"[A-Za-z]{3,}", f"{first} {second}") if word not in " ".join(same)]
    assert strange == []


def test_english_reads_no_catalogue(here: Path) -> None:
    chinese.cache_clear()
    found = batchbridge.check(here, world_size=8, **UNDER)
    found.text()
    assert chinese.cache_info().currsize == 0
    found.text(lang="zh")
    assert chinese.cache_info().currsize == 1


def test_a_title_without_chinese_leaves_its_line_in_english(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untitled = chinese()._replace(titles={})
    monkeypatch.setattr(words, "chinese", lambda: untitled)
    said = batchbridge.check(here, world_size=8, **UNDER).text(lang="zh")
    assert "\n    rule: rollout tears groups (batchbridge rule BB-TRL-021)" in said
    assert "规则" not in said


def test_a_terminal_without_chinese_gets_english(here: Path) -> None:
    line = [sys.executable, "-m", "batchbridge", *CHECK]
    environment = {**os.environ, "LANG": "zh_CN.UTF-8", "PYTHONIOENCODING": "ascii"}
    environment.pop("LC_ALL", None)
    said = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert "INVALID  1 error" in said.stdout
    assert said.returncode == 2


@pytest.mark.parametrize(
    ("file", "text", "place", "mark"),
    [
        (
            "a.yaml",
            "num_generations: 8\nper_device_train_batch_size：16\n",
            "a.yaml:2:28",
            "： (U+FF1A); write the plain :",
        ),
        ("a.yaml", "per_device_train_batch_size：16\n", "a.yaml:1:28", "： (U+FF1A); write the plain :"),
        ("a.yaml", "# 注：\nnum_generations: “8”\n", "a.yaml:2:18", '“ (U+201C); write the plain "'),
        ("a.yaml", "num_generations: 8\nreward_weights: [1.0，0.5]\n", "a.yaml:2:21", "， (U+FF0C); write the plain ,"),
        (
            "run.sh",
            "# 批大小：\npython -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=“8”\n",
            "run.sh:2:84",
            '“ (U+201C); write the plain "',
        ),
    ],
)
def test_a_mark_of_a_chinese_keyboard_is_pointed_at(
    file: str, text: str, place: str, mark: str, here: Path, typed: Typed
) -> None:
    Path(file).write_text(text, encoding="utf-8")
    framework, version = ("verl", "0.9.1") if file == "run.sh" else ("trl", "1.16.0")
    words = ("check", file, "--framework", framework, "--framework-version", version, "--gpus", "8")
    assert f"hint: {place} has the full-width {mark}" in typed(*words, "--lang", "en")[1]
    said = typed(*words, "--lang", "zh")[1]
    assert f"注意：{place} 有全角的 {mark[0]}（{mark[3:9]}）；请改为半角的 {mark[-1]}" in said


def test_the_marks_of_a_chinese_sentence_are_no_mistake(here: Path, typed: Typed) -> None:
    here.write_text(RECIPE.replace("14", "14.5  # 每组：十四") + "system_prompt: 你好，请回答：\n", encoding="utf-8")
    assert "hint:" not in typed(*CHECK)[1]


def test_a_file_in_gbk_gets_its_hint_in_both_languages(here: Path, typed: Typed) -> None:
    here.write_bytes("# 批大小\nnum_generations: 4\n".encode("gbk"))
    assert "fix: it reads as GBK: save it as UTF-8" in typed(*CHECK, "--lang", "en")[1]
    assert "修正：文件是 GBK 编码：请另存为 UTF-8" in typed(*CHECK, "--lang", "zh")[1]


def test_a_chinese_character_has_two_columns() -> None:
    assert [cells(one) for one in ("", "abc", "训练步", "e\u0301", "\u2588\u2502", "，a")] == [0, 3, 6, 1, 2, 3]
    assert plain_table(("修正", "n"), [("a = 1", "2"), ("组", "3")]).splitlines() == [
        "修正   n",
        "a = 1  2",
        "组     3",
    ]


def test_a_chinese_line_is_folded_between_characters_and_at_no_mark() -> None:
    line = "  " + "一个训练步训练四个补全，" * 3 + "见 per_device_train_batch_size（:2）。"
    for width in range(8, 90):
        said = list(folded(line, width, "    "))
        assert "".join(said).replace(" ", "") == line.replace(" ", "")
        assert all(cells(one) <= max(width, 4 + len("per_device_train_batch_size") + 1) for one in said)
        assert not any(one.strip()[0] in "，。）" for one in said)
        assert not any(one.endswith("（") for one in said)


def test_the_name_of_a_file_stays_whole() -> None:
    assert list(folded("看 数据/训练配置.yaml 和 b", 10, "  ")) == ["看", "  数据/训练配置.yaml", "  和 b"]


def test_the_words_of_a_verdict_have_their_colour_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchbridge.cli._tables._is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with spoken("zh"):
        said = f"a.yaml  trl  {say('INVALID')}  1\n  {say('error')} :2  x"
        assert coloured(said) == "a.yaml  trl  \x1b[31m无效\x1b[0m  1\n  \x1b[31m错误\x1b[0m :2  x"
    assert coloured(said) == said


def test_a_table_on_a_terminal_is_cut_by_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [("组" * 14, "2")]
    assert "\u2500" not in _table_on_terminal(("修正", "数"), rows)  # 28 columns, and not 14
    assert list(_folded("组" * 14, 20)) == ["组" * 10, "  " + "组" * 4]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_chinese_within_its_width(width: int, here: Path) -> None:
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm", "PYTHONUTF8": "1", "NO_COLOR": "1"}
    main_end, terminal = pty.openpty()
    line = [sys.executable, "-m", "batchbridge", *CHECK, "--lang", "zh"]
    with subprocess.Popen(line, env=environment, stdout=terminal, stdin=subprocess.DEVNULL) as process:
        os.close(terminal)
        said = b""
        while True:
            try:
                more = os.read(main_end, 1 << 16)
            except OSError:  # the end, as Linux says it
                break
            if not more:
                break
            said += more
    os.close(main_end)
    lines = said.decode("utf-8").replace("\r\n", "\n").splitlines()
    assert process.returncode == 2
    assert lines[0] == "recipe.yaml  trl 1.16.0  无效  1 个错误"
    assert max(map(cells, lines)) <= width
    if width > 60:
        head = next(one for one in lines if one.split() == ["--fix", "修正", "设备", "completion", "prompt"])
        row = next(one for one in lines if "per_device_train_batch_size = 14 " in one)
        assert cells(head[: head.index("设备")]) == row.index("8  ")
