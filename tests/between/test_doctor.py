"""Pasted error texts: recognised, explained, with neighbours that really are legal."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from pasted import PASTED, SAID
from toys import AnyAdapter

import batchbridge
from batchbridge import hookimpl
from batchbridge.cli.main import EXAMPLES
from batchbridge.contract import plugins
from batchbridge.contract.error_text import ErrorText
from batchbridge.diagnosis import MAX_CHARACTERS, doctor, known_texts, nearest
from batchbridge.kit.error_texts import divisors, multiples, quotations

GOLDEN = Path(__file__).parent / "golden"
Run = Callable[..., tuple[int, str, str]]
TEXTS = known_texts()
EVERY = {**PASTED, **SAID}


def fixes(text: str, **numbers: int) -> list[str]:
    (found,) = doctor(text, numbers, TEXTS)
    return [fix.text for fix in found.fixes]


def test_every_row_has_a_pasted_text_here() -> None:
    assert sorted(EVERY) == sorted(text.name for text in TEXTS)


@pytest.mark.parametrize("name", EVERY)
def test_a_pasted_text_is_recognised_as_its_row_and_no_other(name: str) -> None:
    assert [found.text.name for found in doctor(EVERY[name], texts=TEXTS)] == [name]


@pytest.mark.parametrize("name", EVERY)
def test_a_row_offers_a_neighbour_or_asks_for_what_it_needs(name: str) -> None:
    (found,) = doctor(EVERY[name], texts=TEXTS)
    assert found.fixes or found.asks
    answered = {ask.name: 8 for ask in found.asks}
    (again,) = doctor(EVERY[name], answered, TEXTS)
    assert again.fixes
    assert not again.asks


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_a_version_range_is_a_specifier_or_words(text: ErrorText) -> None:
    if text.versions[0] in "<>=~!":
        SpecifierSet(text.versions)
    assert text.versions.strip()


def test_seven_devices_and_eight_generations() -> None:
    assert fixes(PASTED["trl-global-batch"]) == ["per_device_train_batch_size = 8", "8 devices", "num_generations = 7"]


def test_one_completion_in_all_has_no_legal_group_so_the_micro_batch_must_grow() -> None:
    text = PASTED["trl-global-batch"].replace("(7 x 1)", "(1 x 1)")
    assert "num_generations" not in " ".join(fixes(text))
    assert "per_device_train_batch_size = 8" in fixes(text)


def test_one_generation_is_never_offered_though_one_divides_everything() -> None:
    text = PASTED["trl-global-batch"].replace("prompt (8)", "prompt (1)")
    assert fixes(text) == ["num_generations = 7"]


@given(*[st.integers(min_value=1, max_value=64)] * 3)
def test_every_neighbour_of_trls_rule_is_legal(world: int, micro: int, group: int) -> None:
    text = PASTED["trl-global-batch"].replace("(7 x 1)", f"({world} x {micro})").replace("(8)", f"({group})")
    (found,) = doctor(text, texts=TEXTS)
    assert found.fixes
    for fix in found.fixes:
        sizes = {"per_device_train_batch_size": micro, "num_generations": group, **fix.changes}
        devices = int(fix.text.split()[0]) if not fix.changes else world
        legal_group = sizes["num_generations"] >= 2 or "per_device_train_batch_size" in fix.changes
        assert devices * sizes["per_device_train_batch_size"] % sizes["num_generations"] == 0
        assert legal_group


def test_deepspeeds_product_has_neighbours_in_every_factor() -> None:
    assert fixes(PASTED["deepspeed-batch"]) == [
        "train_batch_size = 252 (accumulation 18)",
        "train_batch_size = 266 (accumulation 19)",
        "4 devices",
        "8 devices",
    ]


def test_what_is_asked_for_gives_neighbours_in_prompts() -> None:
    assert "data.train_batch_size = 102" in fixes(PASTED["verl-equal-chunks"], n=5)


def test_texts_are_found_inside_a_coloured_wrapped_traceback_with_rays_prefixes() -> None:
    text = (
        "Traceback (most recent call last):\n"
        "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m AssertionError: only support equal chunk. Got size of\n"
        "(TaskRunner pid=123) DataProto 512 and chunk 6.\n"
    )
    (found,) = doctor(text, texts=TEXTS)
    assert (found.text.name, found.line, found.numbers) == ("verl-equal-chunks", 2, {"rows": 512, "parts": 6})


NOISE = """\
2026-03-01 10:11:12,345 INFO worker.py:1841 -- Started a local Ray instance. 8 x 80 GiB
Loading checkpoint shards: 100%|##########| 4/4 [00:07<00:00,  1.9s/it]
(WorkerDict pid=4711, ip=10.0.0.2) /usr/lib/python3.11/site-packages/torch/x.py:65: UserWarning: 7 x 1 is not a matter
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 128, in <module>
[rank3]:     main(batch_size=512, chunk=6)
"""
"""What stands around an error in a log; none of it is one."""


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(TaskRunner pid=9) ", "\x1b[31m", "[default0]:"])
@pytest.mark.parametrize("name", PASTED)
def test_a_text_is_found_in_a_log_whatever_stands_around_it_and_wherever_it_is_broken(name: str, prefix: str) -> None:
    words = PASTED[name].split()
    half = len(words) // 2
    broken = f"{prefix}{' '.join(words[:half])}\n{prefix}  {' '.join(words[half:])}\n"
    (found,) = doctor(NOISE + broken + NOISE, texts=TEXTS)
    (alone,) = doctor(PASTED[name], texts=TEXTS)
    assert (found.text.name, found.numbers, found.fixes) == (name, alone.numbers, alone.fixes)
    assert found.line in (7, 8)


EQUAL = PASTED["verl-equal-chunks"]


@pytest.mark.parametrize(
    "escape", ["\x1b[38:2::255:0:0m", "\x1b[?25l", "\x1b]8;;https://a.b/c\x1b\\", "\x1b]0;title\x07", "\x1b[2K"]
)
def test_a_text_is_found_whatever_a_terminal_was_told_inside_of_it(escape: str) -> None:
    half = len(EQUAL) // 2
    assert doctor(f"{EQUAL[:half]}{escape}{EQUAL[half:]}", texts=TEXTS) == doctor(EQUAL, texts=TEXTS)


def test_lines_are_those_of_an_editor_where_a_progress_bar_was_drawn() -> None:
    words = EQUAL.split()
    bar = "".join(f"(TaskRunner pid=9) {percent}%|##  |\r" for percent in range(100))
    log = f"start\r\n{bar}(TaskRunner pid=9) {' '.join(words[:4])}\r\n(TaskRunner pid=9) {' '.join(words[4:])}\r\n"
    (found,) = doctor(log, texts=TEXTS)
    assert (found.text.name, found.line) == ("verl-equal-chunks", 2)


def test_a_part_of_a_number_is_no_number() -> None:
    text = "AssertionError: only support equal chunk. Got size of DataProto {} and chunk {}."
    assert [found.numbers for found in doctor(text.format(500, 96), texts=TEXTS)] == [{"rows": 500, "parts": 96}]
    assert doctor(text.format(500, 12345678901), texts=TEXTS) == ()
    assert doctor(text.format(12345678901, 96), texts=TEXTS) == ()


def test_brackets_between_the_words_of_a_quotation_take_no_time() -> None:
    """Each pair of brackets could be passed in two ways."""
    words = "number of prompts in each rollout must be whole"
    (quoted,) = quotations(f"ValueError: {words}")
    text = words.replace(" ", "()()()").removesuffix("whole")
    before = time.process_time()
    assert not re.search(quoted, text)
    assert time.process_time() - before < 1


def test_a_message_on_two_lines_is_like_the_known_one() -> None:
    short = "only support equal sizes of\nDataProto and chunk\nend"
    assert nearest(short)[0] == nearest("noise\n" * 300 + short)[0]


def test_noise_alone_is_nothing() -> None:
    assert doctor(NOISE, texts=TEXTS) == ()


def test_both_spellings_of_a_rollout_smaller_than_its_step() -> None:
    """verl asserted before 0.6.0; since then the error has the numbers, and nothing is asked."""
    text = "ValueError: train_batch_size (16) must be >= actor.ppo_mini_batch_size (128)"
    assert fixes(text) == ["data.train_batch_size = 128", "actor_rollout_ref.actor.ppo_mini_batch_size = 16"]


def test_a_text_cut_off_before_the_group_asks_for_it() -> None:
    text = PASTED["trl-global-batch"].partition(" (8)")[0]
    (found,) = doctor(text, texts=TEXTS)
    assert ([ask.name for ask in found.asks], found.fixes) == (["group"], ())
    assert fixes(text, group=8) == fixes(PASTED["trl-global-batch"])


PAIN = Path(__file__).parents[3] / "shared" / "reference" / "pain.md"
PLACES = re.compile(r"\b[A-Z]\b|\bGAS\b|\bpd\b|\(\.\.\)")
"""How the page writes numbers that differ from thread to thread."""


@pytest.mark.shared
def test_every_error_text_of_the_reference_is_known() -> None:
    if not PAIN.is_file():
        pytest.skip("../shared/reference is not part of this repository")
    _, _, section = PAIN.read_text(encoding="utf-8").partition("### Error texts")
    lines = [line for line in section.partition("\n\n")[0].splitlines() if line.startswith("- ")]
    # What begins with dots or a bracket is the tail of the text before it, with other numbers.
    quoted = [text for line in lines for text in re.findall(r"`([^`]*)`", line) if re.match(r"[^.(].{15}", text)]
    assert len(quoted) >= 15
    unknown = []
    for text in quoted:
        numbered = PLACES.sub(lambda place: "(8)" if place.group() == "(..)" else "8", text).replace("...", "")
        if not doctor(numbered, texts=TEXTS):
            unknown.append(text)
    assert unknown == []


def test_the_same_text_of_many_ranks_is_one_diagnosis() -> None:
    assert len(doctor("\n".join([PASTED["verl-equal-chunks"]] * 50), texts=TEXTS)) == 1


def test_nothing_is_made_of_other_texts() -> None:
    assert doctor("RuntimeError: a shape is not right. Tried to allocate 2.00 GiB", texts=TEXTS) == ()


@given(st.text(max_size=300))
def test_no_text_is_a_crash(text: str) -> None:
    for start in list(PASTED.values())[:3]:
        doctor(text + start + text, texts=TEXTS)


@pytest.mark.parametrize("zeros", ["0 x 0", "999999999 x 999999999", "99999999999999 x 1"])
def test_absurd_numbers_end_quickly(zeros: str) -> None:
    doctor(PASTED["trl-global-batch"].replace("7 x 1", zeros), texts=TEXTS)


@pytest.mark.parametrize("name", PASTED)
def test_zeros_are_no_crash(name: str) -> None:
    asked = {ask.name: 0 for text in TEXTS for ask in text.asks}
    assert doctor(PASTED[name], asked, TEXTS)


def test_of_a_long_text_the_end_is_read() -> None:
    assert doctor("x" * MAX_CHARACTERS + " " + PASTED["verl-equal-chunks"], texts=TEXTS)


def test_a_line_is_counted_from_the_texts_beginning_however_long_it_is(run: Run) -> None:
    log = "x\n" * MAX_CHARACTERS + EQUAL
    assert [found.line for found in doctor(log, texts=TEXTS)] == [MAX_CHARACTERS + 1]
    Path("error.txt").write_text("x\n" * 5 * MAX_CHARACTERS + EQUAL, encoding="utf-8")
    (shown,) = json.loads(run("doctor", "error.txt", "--json")[1])["results"]
    assert shown["line"] == 5 * MAX_CHARACTERS + 1


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_multiples_are_multiples(of: int, value: int) -> None:
    found = multiples(of, value)
    assert found
    assert all(near % of == 0 and near > 0 for near in found)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_divisors_divide(number: int, value: int) -> None:
    found = divisors(number, value)
    assert found
    assert all(number % near == 0 for near in found)


# ---- the command


@pytest.fixture
def frameworks() -> None:
    """All that are installed: the texts are theirs."""


@pytest.fixture
def pasted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a text into standard input."""

    def paste(text: str) -> None:
        stream = SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", stream)

    return paste


SCENES = {
    "doctor": (("doctor",), "\n".join(["Traceback (most recent call last):", *list(PASTED.values())[:2]])),
    "doctor_asks": (("doctor",), PASTED["verl-mini-batch-zero"]),
    "doctor_answered": (("doctor", "--with", "n=5", "--with", "devices=16"), PASTED["verl-mini-batch-zero"]),
    "doctor_unknown": (("doctor",), "RuntimeError: something else"),
}
"""Arguments and standard input by golden file. Refresh with BATCHBRIDGE_UPDATE_GOLDEN=1, and read the difference."""


@pytest.mark.parametrize("scene", SCENES)
def test_text_is_as_people_were_shown_it(scene: str, run: Run, pasted: Callable[[str], None]) -> None:
    arguments, text = SCENES[scene]
    pasted(text)
    code, out, err = run(*arguments)
    shown = f"$ batchbridge {' '.join(arguments)}\n{out}{err}exit code {code}\n"
    path = GOLDEN / f"{scene}.txt"
    if os.environ.get("BATCHBRIDGE_UPDATE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_a_file_is_read_and_json_has_the_neighbours(run: Run) -> None:
    Path("error.txt").write_text(PASTED["deepspeed-batch"], encoding="utf-8")
    code, out, _ = run("doctor", "error.txt", "--json")
    (shown,) = json.loads(out)["results"]
    assert (code, shown["name"], shown["numbers"]["devices"]) == (0, "deepspeed-batch", 7)
    fix = {"text": "train_batch_size = 252 (accumulation 18)", "changes": {"train_batch_size": 252}, "safe": False}
    assert fix in shown["fixes"]


def test_the_example_in_the_help_is_known(run: Run) -> None:
    (text,) = [shlex.split(words)[0] for words in EXAMPLES["doctor"] if words.startswith("'")]
    assert run("doctor", text)[0] == 0


def test_a_configuration_that_cannot_be_read_is_not_said_to_break_no_rule(run: Run) -> None:
    code, out, _ = run("doctor", EQUAL, "--config", "nowhere.sh")
    assert code == 0
    assert "breaks no rule" not in out
    assert "  nowhere.sh is not read: BB001 error  " in out


def test_a_log_of_powershell_is_read(run: Run) -> None:
    Path("error.txt").write_bytes(f"start\r\n{EQUAL}\r\n".encode("utf-16"))
    (shown,) = json.loads(run("doctor", "error.txt", "--json")[1])["results"]
    assert (shown["name"], shown["line"]) == ("verl-equal-chunks", 2)


def test_binary_input_is_no_crash(run: Run) -> None:
    Path("error.bin").write_bytes(bytes(range(256)) * 100)
    assert run("doctor", "error.bin")[0] == 4


@pytest.mark.parametrize("wrong", ["n", "n=", "n=-1", "n=0", "n=000", "n=1.5", "n=9999999999"])
def test_an_answer_that_is_no_number_is_a_usage_error(wrong: str, run: Run) -> None:
    Path("error.txt").write_text("x", encoding="utf-8")
    assert run("doctor", "error.txt", "--with", wrong)[0] == 64


class TalkingAdapter(AnyAdapter):
    framework = "talking"

    def error_texts(self) -> tuple[ErrorText, ...]:
        return (
            ErrorText(
                name="talking-odd",
                framework="talking",
                versions=">=1",
                pattern=r"odd: (?P<size>\d{1,9})",
                rule="sizes are even",
                meaning="the size is odd",
                phase="config",
                source="talking 1.0",
            ),
        )


class BrokenAdapter(AnyAdapter):
    framework = "broken"

    def error_texts(self) -> tuple[ErrorText, ...]:
        raise RuntimeError("no texts")


def test_an_adapter_adds_its_own_texts_and_a_broken_one_does_not_keep_them_away(frameworks: None) -> None:
    module = ModuleType("talking")
    module.batchbridge_adapters = hookimpl(  # type: ignore[attr-defined]  # a module made by hand
        lambda: [TalkingAdapter, BrokenAdapter], specname="batchbridge_adapters"
    )
    plugins.manager().register(module, "talking")
    try:
        (found,) = doctor("odd: 7")
    finally:
        plugins.manager().unregister(module)
    assert (found.text.name, found.numbers) == ("talking-odd", {"size": 7})


# ---- version ranges agree with the adapters' rules

SAYS = {
    "trl-global-batch": ("global train batch size", {"num_generations": 8, "per_device_train_batch_size": 1}),
    "trl-effective-batch": ("effective train batch size", {"num_generations": 8, "per_device_train_batch_size": 1}),
    "trl-generation-batch": (
        "generation_batch_size must be divisible by num_generations",
        {"num_generations": 8, "per_device_train_batch_size": 1},
    ),
    "trl-generation-micro-steps": (
        "generation_batch_size must be divisible by the global batch size",
        {"num_generations": 2, "generation_batch_size": 12},
    ),
}
"""Fragment of TRL's own text, and settings that break its rule on seven devices."""


@pytest.mark.parametrize("version", ["0.15.0", "0.16.1", "0.17.0", "0.18.0", "0.19.1", "0.20.0", "1.9.0", "1.16.0"])
@pytest.mark.parametrize("name", SAYS)
def test_a_text_is_known_for_the_versions_in_which_trl_says_it(name: str, version: str) -> None:
    fragment, settings = SAYS[name]
    reading = batchbridge.read(settings, framework="trl", version=version, world_size=7)
    said = any(fragment in (finding.native or "") for finding in reading.findings)
    (row,) = (text for text in TEXTS if text.name == name)
    assert said == SpecifierSet(row.versions).contains(version)
