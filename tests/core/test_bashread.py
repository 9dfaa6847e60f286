"""The bash reader: what bash itself executes, what stays unknown, and what no text can do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bashread import MAX_BYTES, Argument, ScriptCommands, read_script
from bashread.arithmetic import NotArithmetic, evaluate

CASES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "scripts").glob("*.sh"))}
"""Constructs that launch scripts use, each in a small harmless script; `show` prints its arguments."""
SHARED = Path(__file__).parents[3] / "shared" / "corpus" / "launch_argv.jsonl"


def argvs(text: str, env: dict[str, str] | None = None) -> list[list[str]]:
    return [list(command.argv) for command in read_script(text, env).commands]


def kinds(script: ScriptCommands) -> list[str]:
    return [remark.kind for remark in script.remarks]


# ---- what bash executes


def bash_itself(script: str, folder: Path, env: dict[str, str] | None = None) -> list[list[str]]:
    """The arguments of every `show` that bash runs. The scripts are this repository's own and do nothing else."""
    shown = folder / "shown"
    shown.touch()
    program = folder / "show"
    program.write_text('#!/usr/bin/env bash\n{ printf "%s\\0" "$@"; printf "\\1"; } >> "$SHOWN"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SHOWN": str(shown), **(env or {})}
    subprocess.run(["bash", "-c", script], env=environment, cwd=folder, capture_output=True, check=False, timeout=30)
    return [record.split("\0")[:-1] for record in shown.read_text().split("\1")[:-1]]


@pytest.mark.parametrize("name", CASES)
def test_commands_are_those_that_bash_executes(name: str, tmp_path: Path) -> None:
    expected = bash_itself(CASES[name], tmp_path)
    assert expected, "bash ran nothing"
    assert [argv[1:] for argv in argvs(CASES[name]) if argv[0] == "show"] == expected


FROM_OUTSIDE = """
GPUS=${GPUS:-8}
ARGS=(--gpus "$GPUS" --total $((GPUS * NODES)))
[ -n "$NAME" ] && ARGS+=(--name "$NAME")
case $MODE in train*) ARGS+=(--train) ;; *) ARGS+=(--other "${MODE:-none}") ;; esac
launch() { show "$@" ${EXTRA} "${EXTRA}" ${EXTRA-unset} ${EXTRA:+set}; }
launch "${ARGS[@]}"
"""


@pytest.mark.parametrize(
    "env",
    [
        {"GPUS": "4", "NODES": "2", "NAME": "two words", "MODE": "training", "EXTRA": "--a 1 --b"},
        {"GPUS": "", "NODES": "0x10", "NAME": "", "MODE": "", "EXTRA": ""},
        {"GPUS": "1", "NODES": "GPUS + 1", "NAME": "*", "MODE": "x y", "EXTRA": "'quoted' \\"},
    ],
)
def test_given_environment_variables_give_what_bash_makes_of_them(env: dict[str, str], tmp_path: Path) -> None:
    expected = bash_itself(FROM_OUTSIDE, tmp_path, env)
    assert len(expected) == 1
    assert [argv[1:] for argv in argvs(FROM_OUTSIDE, env)] == expected


@pytest.mark.parametrize("name", CASES)
def test_constructs_that_are_read_leave_no_remark(name: str) -> None:
    assert set(kinds(read_script(CASES[name]))) <= {"ends"}


def test_every_word_knows_its_line() -> None:
    (command,) = read_script('A=(\n  x=1\n  y=2\n)\n\npython \\\n  "${A[@]}" \\\n  z=3\n').commands
    assert [(word.text, word.line) for word in command.words] == [("python", 6), ("x=1", 2), ("y=2", 3), ("z=3", 8)]


@given(
    st.recursive(
        st.integers(0, 999).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        max_leaves=8,
    )
)
def test_arithmetic_is_exact_while_it_fits_64_bits(expression: str) -> None:
    value = eval(expression, {"__builtins__": {}})  # digits, brackets and + - * only
    if abs(value) < 1 << 62:
        assert evaluate(expression, lambda name: 0, lambda *_: None) == value


@pytest.mark.parametrize("expression", ["1/0", "1 +", "(1", "2**-1", "08", "1?2", "a b", "1.5", "3#9"])
def test_what_bash_calls_no_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(NotArithmetic):
        evaluate(expression, lambda name: 0, lambda *_: None)


# ---- what stays unknown


def unknown(text: str, env: dict[str, str] | None = None) -> list[tuple[str, tuple[str, ...]]]:
    command = read_script(text, env).commands[-1]
    return [(word.text, word.unknown[0].names) for word in command.words if word.unknown]


@pytest.mark.parametrize(
    ("script", "word", "names"),
    [
        ("python x=$N", "x=$N", ("N",)),
        ('python "$A/b"', "$A/b", ("A",)),
        ("python $((N * 8))", "$((N * 8))", ("N",)),
        ("python ${N#a}", "${N#a}", ("N",)),
        ("M=$N\npython x=${M}", "x=$N", ("N",)),
        ("python $1", "$1", ("1",)),
        ("python t=$(date +%s)", "t=$(date +%s)", ()),
        ("python r=$RANDOM", "r=$RANDOM", ()),
        ("python ~/data", "$HOME/data", ("HOME",)),
        ("D=${D:-$(probe)}\npython x=$D", "x=$(probe)", ("D",)),
        ("D=${D:-$(probe)}\nif [ $D = a ]; then N=1; else N=2; fi\npython x=$N", "x=$N", ("D",)),
        ("if probe; then N=1; else N=2; fi\npython x=$N", "x=$N", ()),
    ],
)
def test_what_is_not_decided_is_named(script: str, word: str, names: tuple[str, ...]) -> None:
    assert unknown(script) == [(word, names)]


@pytest.mark.parametrize(
    ("script", "env", "word"),
    [
        ("python x=$N", {"N": "4"}, "x=4"),
        ("python x=${N:-8}", {"N": "4"}, "x=4"),
        ("python $((N * 8))", {"N": "4"}, "32"),
        ("python x=$1", {"1": "a"}, "x=a"),
        ("N=2\npython x=$N", {"N": "4"}, "x=2"),
    ],
)
def test_what_is_given_is_used(script: str, env: dict[str, str], word: str) -> None:
    assert argvs(script, env) == [["python", word]]


PROBE = "D=${D:-$(%s && echo npu || echo gpu)}\npython x=$D"


@pytest.mark.parametrize(
    ("program", "choices"),
    [
        ("python3 -c 'import torch_npu' 2>/dev/null", ("npu", "gpu")),
        ("command -v npu-smi >/dev/null 2>&1", ("npu", "gpu")),
        ("npu-smi &> /dev/null", ("npu", "gpu")),
        ("npu-smi", None),  # what it prints comes first
        ("npu-smi 2>/dev/null", None),
        ("python3 -c 'print(1)'", None),
        ("a; b >/dev/null", None),
        ("a $(b) >/dev/null", None),
    ],
)
def test_a_program_that_decides_leaves_a_choice(program: str, choices: tuple[str, ...] | None) -> None:
    script = read_script(PROBE % program)
    assert [(one.names, one.one_of) for one in script.choices] == ([(("D",), choices)] if choices else [])
    assert unknown(PROBE % program)[0][1] == ("D",)  # and is as open as before: who reads on may take one
    assert not read_script(PROBE.replace("${D:-", "").replace("}", "") % program).choices  # nobody can say which


def test_ways_out_of_a_function_that_nothing_decides_leave_what_follows_open() -> None:
    script = 'ok() { if [ "$GPU" = h100 ]; then return 0; fi; return 1; }\nok && python x'
    assert [command.only_if[0].shown for command in read_script(script).commands] == ["$GPU"]
    assert argvs(script, {"GPU": "h100"}) == [["python", "x"]]
    assert argvs(script, {"GPU": "a100"}) == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('x=$([ "$N" -gt 0 ] && echo 1 || echo 0)\npython $x', [True]),
        ("f() { [ -f x ] && return; echo a; }\npython $(f)", [True]),
        ("hosts=($(probe))\npython ${#hosts[@]} ${hosts[1]}", [True, True]),
        ("if probe; then a=(1 2); else a=(3); fi\npython ${#a[@]} ${a[1]}", [True, True]),
        ("if probe; then a=(1 2); fi\na+=(3)\npython ${#a[@]} ${a[1]}", [True, True]),
        ("if probe; then a=(1 2); fi\nunset a[0]\npython ${#a[@]}", [True]),
        ("set -- $X a\npython $# $2", [True, True]),
        ("set -- a b\nif [ -f a ]; then shift; fi\npython $1", [True]),
        ("set -- a b\nshift $N\npython $1", [True]),
        ("x=1\n((x = N + 1))\npython $x", [True]),
        ("x=1\n((x += $N))\npython $x", [True]),
        ("X=$Y\npython ${X-8}", [True]),
        ("read <<< a\npython ${REPLY:-8}", [True]),
        ("python ${BASH_SOURCE[0]:-8} ${UID:-8}", [True, True]),
        ("python <(probe)", [True]),
        ("x=abc\npython ${x/b/[&]}", [True]),
        ("python a=~/x b.c=~/x", [True, False]),
        ("x=a:~/b\npython $x", [True]),
        ("i=0\nwhile read l; do python $i; ((++i)); done\n", [True]),
        ("for i in 1 2; do if probe; then break; fi; n=$i; done\npython ${n:-0} $i", [True, True]),
        ("for i in 1 2; do probe || continue; n=$i; done\npython $n", [False]),
        ("for i in 1 2; do [ -f x ] || continue; n=$i; done\npython $n $i", [True, False]),
        ("while :; do if probe; then break; fi; done\npython done", [False]),
        ("n=8\nfor i in 1 2; do if [ -f $i ]; then n=16; break; fi; done\npython $n", [True]),
        ("n=8\nfor i in 1 2; do if [ -f $i ]; then n=16; continue; fi; done\npython $n", [True]),
        ("n=8\nwhile probe; do if [ -f x ]; then n=16; break; fi; done\npython $n", [True]),
        ("n=8\nfor i in 1; do for j in 1; do [ -f x ] && n=16 && break 2; done; done\npython $n", [True]),
        ("n=8; m=8\nfor i in 1; do if [ -f x ]; then n=16; m=8; break; fi; done\npython $n $m", [True, False]),
        ("f() { if [ -f x ]; then n=16; return; fi; n=8; }\nf\npython $n", [True]),
        ("f() { local n; if [ -f x ]; then n=16; return; fi; }\nn=8\nf\npython $n", [False]),
        ("f() { if [ -f x ]; then n=16; exit; fi; n=8; }\nf\npython $n", [False]),
        ("n=8\n(if [ -f x ]; then n=16; exit; fi)\npython $n", [False]),
    ],
)
def test_what_depends_on_the_unknown_is_unknown(script: str, words: list[bool]) -> None:
    *_, command = read_script(script).commands
    assert [bool(word.unknown) for word in command.words[1:]] == words


def test_a_variable_that_a_loop_may_have_set_before_it_ended_may_be_set() -> None:
    search = "for port in 1 2; do if [ -f $port ]; then export PORT=$port; break; fi; done\n"
    script = search + 'if [ -z "$PORT" ]; then exit; fi\npython $PORT'
    *_, command = read_script(script).commands
    assert command.argv[0] == "python"
    assert command.words[1].unknown


def test_turns_that_nothing_decides_leave_their_commands_open() -> None:
    script = "for i in 1 2; do [ -f $i ] || continue; show $i; done\nfor i in 1 2; do show $i; probe && break; done"
    first, second, *_ = commands = read_script(script).commands
    assert [(one.argv, one.only_if[0].shown) for one in (first, second)] == [
        (("show", "1"), "[ -f 1 ]"),
        (("show", "2"), "[ -f 2 ]"),
    ]
    assert all(not command.only_if for command in commands[2:]), "a program is expected to succeed"


def test_a_launcher_in_a_variable_is_no_argument_of_the_line_before_it() -> None:
    assert not read_script("cd there\n$LAUNCHER --nproc 2 a.py").remarks
    assert not read_script("A=(python x)\ncd there\n${A[@]} --nproc 2").remarks


NOWHERE = ("", ">/dev/null", "> /dev/null 2>&1", "&> /dev/null", "2>/dev/null")


@pytest.mark.parametrize("dashes", ["", "-- "])
@pytest.mark.parametrize("away", NOWHERE)
def test_a_script_that_knows_its_own_name_knows_its_folder(dashes: str, away: str) -> None:
    script = f'HERE=$(cd {dashes}"$(dirname {dashes}"${{BASH_SOURCE[0]}}")" {away} && pwd)\n'
    script += 'python "$HERE/t.py" $0 $(cd .. && pwd)\npython $PWD'
    found = read_script(script, {"PWD": "."}, "scripts/run.sh").commands
    assert [command.argv for command in found] == [("python", "scripts/t.py", "scripts/run.sh", ".."), ("python", ".")]
    assert read_script(script, {"PWD": "."}).commands[0].words[1].unknown


@pytest.mark.parametrize(
    ("substitution", "value"),
    [
        ("echo a >/dev/null; echo b", "b"),
        ("nvidia-smi >/dev/null && echo b", None),  # it may fail
        ("command -v python3", None),
        ("echo a 2>/dev/null", "a"),
        ("echo a >there", None),
        ("echo a 2>&1 >/dev/null", None),
        ("nvidia-smi 2>/dev/null", None),
    ],
)
def test_what_is_printed_into_nothing_is_no_output(substitution: str, value: str | None) -> None:
    (command,) = read_script(f"python $({substitution})").commands
    word = command.words[1]
    assert (word.text if not word.unknown else None) == value


def test_a_folder_that_nothing_decides_stays_unknown_behind_cd() -> None:
    assert read_script("cd $SOMEWHERE\npython $PWD/t.py", {"PWD": "."}).commands[0].words[1].unknown
    assert argvs("cd a\ncd ../b\npython $PWD/t.py", {"PWD": "."}) == [["python", "b/t.py"]]


def test_a_script_without_arguments_passes_none_on() -> None:
    assert argvs('python a "$@" b $@') == [["python", "a", "b"]]


def test_the_real_environment_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHBRIDGE_TEST_N", "4")
    assert unknown("python x=$BATCHBRIDGE_TEST_N") == [("x=$BATCHBRIDGE_TEST_N", ("BATCHBRIDGE_TEST_N",))]


def test_an_undecided_branch_leaves_its_variables_open() -> None:
    script = 'N=1\nif [ "$GPU" = h100 ]; then N=2; fi\npython x=$N'
    assert unknown(script) == [("x=$N", ("GPU",))]
    assert argvs(script, {"GPU": "h100"}) == [["python", "x=2"]]


def test_commands_of_undecided_branches_say_what_decides() -> None:
    first, second, third = read_script('if [ -f x ]; then a 1; else b 2; fi\nif [ "$Q" = 1 ]; then c 3; fi').commands
    assert [c.only_if[0].shown for c in (first, second, third)] == ["[ -f x ]", "[ -f x ]", "$Q"]


def test_a_branch_that_exits_is_no_way_on() -> None:
    assert argvs("N=8\nif ! command -v uv; then N=1; exit 1; fi\npython x=$N")[-1] == ["python", "x=8"]


def test_an_unset_variable_is_empty_where_the_script_asks() -> None:
    assert argvs('if [ -z "$N" ]; then N=8; fi\npython x=$N') == [["python", "x=8"]]


def test_a_loop_over_the_unknown_runs_once_and_undecided() -> None:
    (command,) = read_script("for f in $FILES; do python x=$f; done").commands
    assert (command.argv, command.only_if[0].names) == (("python", "x=$f"), ("FILES",))


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("source ./env.sh", "source"),
        ("bash ./other.sh", "source"),
        ("eval $X", "not_read"),
        ("python a \\\n  # a comment\n  --b 2", "stray"),
        ("python a --c 1\n  ${EXTRA_ARGS[@]} --b 2", "stray"),
        ("if [ 1", "not_read"),
        ("x ${a[b}", "not_read"),
        ("exit 1\nx", "ends"),
        ("while true; do x; done", "not_read"),
        ("case a in a) x ;& b) y ;; esac", "not_read"),
        ("[[ abc == @(abc|d) ]] && x", "not_read"),
        ("f() { local -n r=$1; }; f a", "not_read"),
        ("select i in a b; do x; done", "not_read"),
        ("time { x; }", "not_read"),
        ('x "$(case a in a) echo A ;; esac)"', "not_read"),
        ("x=\\ \ny", "not_read"),
    ],
)
def test_what_is_not_seen_is_said(script: str, kind: str) -> None:
    assert kind in kinds(read_script(script))


# ---- files that are sourced


FILES = {
    "./env.sh": "N=8\nsay() { python said=$1; }\n",
    "again.sh": "source again.sh\n",
    "own.sh": "python of=$1 zero=${BASH_SOURCE[0]}\n",
    "out.sh": "return 0\nN=9\n",
    "end.sh": "exit 0\n",
}


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("N=2\nsource ./env.sh\npython x=$N", [["python", "x=8"]]),
        ("source ./env.sh\nN=2\npython x=$N", [["python", "x=2"]]),
        (". ./env.sh\nsay 3", [["python", "said=3"]]),
        ("set -- a b\nsource own.sh c\npython x=$1", [["python", "of=c", "zero=own.sh"], ["python", "x=a"]]),
        ("N=2\nsource out.sh\npython x=$N", [["python", "x=2"]]),
        ("source end.sh\npython x", []),
        ("(source ./env.sh)\npython x=${N:-1}", [["python", "x=1"]]),
    ],
)
def test_a_file_that_is_sourced_is_read_in_its_place(script: str, commands: list[list[str]]) -> None:
    """As bash 5.2 does it."""
    assert [list(one.argv) for one in read_script(script, beside=FILES.get).commands] == commands


def test_what_a_sourced_file_runs_stands_on_the_line_that_names_it() -> None:
    script = "\n\nsource ./env.sh\n\nsource own.sh\nsay 1\npython x"
    found = read_script(script, beside=FILES.get)
    assert [one.words[0].line for one in found.commands] == [5, 6, 7]
    assert "source" not in kinds(found)


def test_a_file_that_sources_itself_ends() -> None:
    assert "not_read" in kinds(read_script("source again.sh", beside=FILES.get))


def test_a_file_that_is_not_here_is_said() -> None:
    assert "source" in kinds(read_script("source other.sh", beside=FILES.get))


# ---- nothing runs, nothing raises, nothing grows without bound


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    read_script(f"touch {mark}; X=$(touch {mark}); eval 'touch {mark}'; echo `touch {mark}` > {mark}")
    assert not mark.exists()


HOSTILE = {
    "brackets": "(" * 100_000,
    "substitutions": "$(" * 50_000,
    "braces": "x {" + "{" * 60_000,
    "brace products": "x " + "{a,b}" * 40,
    "ranges": "x {1..999999999}",
    "doubling": "X=aaaaaaaaaa\n" + "X=$X$X\n" * 60,
    "endless loop": "while true; do :; done",
    "nested loops": "for i in {1..1000}; do for j in {1..1000}; do x $i $j; done; done",
    "recursion": "f() { f | f; f; }\nf",
    "calls that double": "".join(f"g{i}() {{ g{i + 1}; g{i + 1}; }}\n" for i in range(35)) + "g35() { x; }\ng0",
    "growing array": "A=(" + "a " * 50_000 + ")\n" + 'A+=("${A[@]}")\n' * 40,
    "many branches": "".join(f"V{i}=1\n" for i in range(3000)) + "if [ -f x ]; then A=1; fi\n" * 3000,
    "powers": "x $((9**9**9**9)) $((1<<100000000))",
    "patterns": "X=" + "a" * 4000 + "\nx ${X%%*a*a*a*a*a*a*b}",
    "evals": 'X="eval \\"\\$X\\""; eval "$X"',
    "size": "x\n" * MAX_BYTES,
    "lines taken for one": "a=1 b=2\nx\n" * 4_000,
    "appended": "a=()\na+=" + "b" * 60_000 + "\n" + "a+=$a\n" * 30_000,
    "elements": "A=(" + "a " * 50_000 + ")\nfor i in {1..900}; do x ${A[i]}; done",
    "expansions of a here-document": "cat <<E\n" + "$a " * 80_000 + "\nE\n",
    "appended one by one": "A+=(x)\n" * 30_000,
    "set one by one": "".join(f"A[{place}]=x\n" for place in range(20_000)) + "x ${A[@]}",
    "open loops": "while read a; do " * 12 + "x $a" + "; done" * 12,
    "blanks that are words": "x" + " \\ " * 60_000,
}


def test_a_function_of_one_branch_is_none_in_the_other() -> None:
    script = read_script("if [ -f x ]; then f() { show one; }; else f other; fi; f after")
    assert [command.argv for command in script.commands] == [("f", "other"), ("show", "one")]


LOOPS = (
    "for i in {1..%s}; do :; done",
    "i=0; while ((i++ < %s)); do :; done",
    "for ((i = 0; i < %s; i++)); do :; done",
)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_may_have_a_thousand_turns(loop: str) -> None:
    assert not read_script(loop % 1000).remarks
    (remark,) = read_script(loop % 1001).remarks
    assert remark.text == "reading stops here: a loop has more than 1,000 turns"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_scripts_cost_seconds_at_most(name: str) -> None:
    start = time.process_time()
    read_script(HOSTILE[name])
    assert time.process_time() - start < 10, "bounded work took too long"  # about 1 s on a slow core


PIECES = st.sampled_from(
    [
        *("$", "${", "}", "$(", "$((", "))", ")", "(", "`", '"', "'", "\\", "\n", " ", ";", "&&", "||", "|", "&", "#"),
        *("if ", "then ", "else ", "fi", "for i in ", "do ", "done", "case ", " in ", "esac", "[ ", " ]", "[[ ", " ]]"),
        *("<<EOF\n", "EOF\n", "<<<", ">", "2>&1", "A=(", "A[1]=", "${A[@]}", "${#A}", "${A:-", "${A//", "${!A}", "A+="),
        *("f() {", "f", "python ", "--x=1", "a.b=c", "echo ", "eval ", "local ", "shift", "{1..3}", "{a,b}", "1", "*"),
        *("-eq", "=", "!", "x", "~", "$@", "$1", "set -- ", "bash -c ", "exit", "return", "break", "\0", "é", "\ud800"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.dictionaries(st.sampled_from(["A", "1", "0", "9999"]), st.text()))
@example("A[", {})
@example("x ${A[", {})
@example("for ((", {})
@example("$@", {"1": "\0"})
def test_arbitrary_text_never_raises(text: str, env: dict[str, str]) -> None:
    script = read_script(text, env)
    assert all("\0" not in word.text for command in script.commands for word in command.words)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(CASES.values())), st.integers(0, 400), st.text(max_size=5))
def test_broken_scripts_never_raise(script: str, place: int, inserted: str) -> None:
    read_script(script[:place] + inserted + script[place + 1 :])


BEYOND_THE_TABLES = """
from bashread import read_script
for code in [*range(0xA0, 0x3000, 7), *range(0x3000, 0x110000, 4099)]:
    for text in ("x {" + chr(code), "x {1.." + chr(code), "l\\nnd\\xa7{" + chr(code), "${" + chr(code)):
        read_script(text)
"""
"""tree-sitter-bash 0.25.1 looks characters up in C's tables of 256 places; beyond them the process may die."""


def test_characters_outside_ascii_do_not_end_the_process() -> None:
    for _ in range(5):  # where the tables lie differs from process to process
        subprocess.run([sys.executable, "-c", BEYOND_THE_TABLES], check=True, timeout=120)


# ---- published scripts


RECORDED_WITH = ({}, {"DEVICE": "npu"})
"""The commands were recorded where every program succeeded at once, and `import torch_npu` is how DEVICE is found."""


@pytest.mark.shared
def test_published_scripts_give_the_recorded_commands() -> None:
    root = os.environ.get("BATCHBRIDGE_UPSTREAM")
    if not root or not SHARED.exists():
        pytest.skip("BATCHBRIDGE_UPSTREAM names no folder of checkouts, or ../shared is absent")
    compared = 0
    for line in SHARED.read_text().splitlines():
        row = json.loads(line)
        path = Path(root) / row["repository"].partition("/")[2] / row["path"]
        if not path.is_file():
            continue
        scripts = [read_script(path.read_text(), env) for env in RECORDED_WITH]
        for recorded in row["commands"]:
            compared += 1
            found = any(_same(command.words, recorded) for script in scripts for command in script.commands)
            assert found, f"{path}: {' '.join(recorded)[:80]}"
    assert compared, f"{root} has none of the scripts"


def _same(words: tuple[Argument, ...], recorded: list[str]) -> bool:
    """Word for word. What depends on the environment, or on where the checkout lay, may be anything, and a word that is
    nothing but an unknown value may be no word."""
    sure = tuple(word for word in words if word.text != "".join(unknown.shown for unknown in word.unknown))
    for candidates in (words, sure):
        pairs = zip(candidates, recorded, strict=False)
        if len(candidates) == len(recorded) and all(w.unknown or w.text == r or "ABS" in r for w, r in pairs):
            return True
    return False


def test_a_grammar_whose_extension_is_not_found_is_imported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    before = argvs("echo a | sort")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert argvs("echo a | sort") == before == [["sort"]]


@pytest.mark.parametrize("runs", ["eval", "bash -c", "bash <<<"])
def test_a_text_with_an_unknown_argument_runs_and_one_with_an_unknown_command_is_told(runs: str) -> None:
    script = read_script(f"{runs} \"N=4; show a=$X n=$((2 * 2)) '[$X]' $(( $X + 1 )) | cat\"")
    (command,) = script.commands[:1]
    assert [word.text for word in command.words] == ["show", "a=$X", "n=4", "[$X]", "$(($X + 1))"]
    assert [bool(word.unknown) for word in command.words] == [False, True, False, True, True]
    assert script.remarks == ()
    for text in ("$X show a", "true; $X", "A=$X show a", "(cd /x && $X)"):
        assert kinds(read_script(f'{runs} "{text}"')) == ["not_read"], text


def test_a_letter_that_stands_for_a_mark_is_none_where_a_script_has_it() -> None:
    script = read_script('eval "show a=$X \ue0007\ue000 \ue000x\ue000"')
    assert [word.text for word in script.commands[0].words] == ["show", "a=$X", "\ue0007\ue000", "\ue000x\ue000"]


def test_a_script_that_runs_itself_with_twice_its_arguments_ends() -> None:
    # Where nothing is counted it ends by itself, some seconds later.
    text = '[ $# -gt 150000 ] && exit\nbash again.sh "$@" "$@" _\n'
    found = read_script(text, own="again.sh", beside=lambda named: text)
    assert ["takes too long" in one.text for one in found.remarks] == [True]
