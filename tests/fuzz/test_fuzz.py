"""The fuzzer finds what it is there to find, and finds nothing in a short run over every reader."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import batchbridge
from batchbridge.reading.toml import parse_toml

HERE = Path(__file__).parent
INPUTS = 8_000
"""Of the short run. The long one is `nox -s fuzz -- --inputs 1000000`."""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}


def test_no_reader_answers_a_mutated_input_with_a_traceback_or_a_side_effect() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), "--inputs", str(INPUTS)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    (inputs, wrong) = re.findall(r"^([\d,]+) inputs in .*: (\d+) wrong answers$", done.stdout, re.MULTILINE)[0]
    assert int(inputs.replace(",", "")) >= 0.99 * INPUTS
    assert wrong == "0"


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".sh"])
def test_tens_of_thousands_of_findings_cost_seconds(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"many{suffix}"
    lines = [f"{'seed' if index % 2 else f'x{index}'}: 1" for index in range(24_000)]
    texts = {
        ".yaml": "\n".join(lines),
        ".json": "{" + "".join('"a": 1,\n' for _ in lines) + '"a": 1}',
        ".sh": "python grpo.py\n" + "".join(f"--x{index} 1\n" for index in range(12_000)),  # no backslash before them
    }
    path.write_text(texts[suffix])
    before = time.process_time()
    reading = batchbridge.read(path, framework="trl", version="1.16.0", world_size=8)
    assert len(reading.findings) > 10_000
    assert time.process_time() - before < 20  # it was minutes while each finding was compared with all others


def test_every_adapter_is_fuzzed_and_its_inputs_are_often_understood() -> None:
    code = (
        "import json, pathlib, random, sys, tempfile\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import readers, seeds\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "understood = {}\n"
        "for reader in readers.table():\n"
        "    if reader.name.partition('-')[0] in seeds.FRAMEWORK:\n"
        "        made = [reader.make(random.Random(number)) for number in range(60)]\n"
        "        understood[reader.name] = sum(reader.act(reader.lay(folder, one)) is True for one in made)\n"
        "print(json.dumps(understood))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    understood: dict[str, int] = json.loads(done.stdout)
    dialects = {name.partition("-")[0].removesuffix("_flat").removesuffix("_ppo") for name in understood}
    text = (HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    project = parse_toml(text, "pyproject.toml").value["project"]
    assert dialects == set(project["entry-points"]["batchbridge"]) - {"history"}
    assert {name: count for name, count in understood.items() if count < 3} == {}


def test_mutations_insert_characters_of_every_plane() -> None:
    code = (
        "import json, random, sys\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import mutation\n"
        "texts = {'text': lambda rng: mutation.text(rng, ['seed: 1']),\n"
        "         'tree': lambda rng: mutation.tree(rng, {'a': 8}),\n"
        "         'words': lambda rng: mutation.words(rng, [['--seed', '1']])}\n"
        "planes = {}\n"
        "for name, make in texts.items():\n"
        "    made = ''.join(json.dumps(make(random.Random(number)), ensure_ascii=False) for number in range(6000))\n"
        "    planes[name] = sorted({ord(mark) >> 16 for mark in made if not mark.isascii()})\n"
        "print(json.dumps(planes))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {name: list(range(17)) for name in ("text", "tree", "words")}


CRASH = """
import os, random, sys
sys.path.insert(0, sys.argv[1])
import run
from faulthandler import _sigsegv
run.CPU_SECONDS = 0.1
exec("def crash(): " + sys.argv[3])
class Reader:
    name, share = "bad", 1
    make, lay = staticmethod(lambda rng: f"input {rng.random()}"), staticmethod(lambda folder, made: made)
    act = staticmethod(lambda laid: counted() == int(sys.argv[2]) and crash())
calls = 0
def counted():
    global calls
    calls += 1
    return calls
print("exit code", run.main(["--inputs", "10", "--seed", "a b"], [Reader]))
"""
"""A reader that is well for so many inputs, 20 of them before the first that counts."""

CRASHES = {
    "reads memory that is not its own": ("_sigsegv()", "SIGSEGV"),
    "gives itself up": ("os.abort()", "SIGABRT"),
    "never comes back from C": ("sum(iter(int, 1))", "SIGPROF"),
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize(
    ("call", "shown"), [(7, "--seed warm --reader bad --number 6"), (24, "--seed a b --reader bad --number 3")]
)
def test_a_crash_of_the_process_is_told_with_its_input(crash: str, call: int, shown: str) -> None:
    code, signal = CRASHES[crash]
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(HERE), str(call), code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith(f"the process ended with {signal}\nexit code 1\n"), (done.stdout, done.stderr)
    assert shown in done.stdout
    assert "input: 'input 0." in done.stdout


MISDEEDS = {
    "raises": "raise KeyError('x')",
    "exits": "sys.exit(0)",
    "runs a program": "subprocess.run(['true'])",
    "runs a shell": "os.system('true')",
    "writes a file": "pathlib.Path('written').write_text('x')",
    "reads a file that the input does not name": "open('/etc/hostname').read()",
    "lists a folder": "os.listdir('/')",
    "evaluates": "eval('1 + 1')",
    "executes": "exec('x = 1')",
    "opens a connection": "socket.create_connection(('127.0.0.1', 9))",
    "imports a framework": "__import__('torch')",
    "changes the environment": "os.environ.update(A='b')",
    "deletes a file": "os.remove('nothing')",
    "hides a side effect": "hide(lambda: os.system('true'))",
    "takes too long": "loop()",
    "takes too much memory at a time": "bytearray(64 << 20)",
}
"""What a reader may do wrong, as an expression or statement."""

CONTROL = """
import os, pathlib, random, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
import guard, run
def hide(act):
    try:
        act()
    except BaseException:
        pass
def loop():
    while True:
        pass
class Reader:
    name, make, lay = "bad", staticmethod(lambda rng: "input"), staticmethod(lambda folder, made: made)
    act = staticmethod(lambda laid: misdeed())
exec("def misdeed(): " + sys.argv[2])
watched = run.Run(pathlib.Path(), 1, guard.Guard((pathlib.Path(sys.base_prefix),)), cpu_seconds=0.5, peak_megabytes=32)
watched.one(Reader, 0, measured=True)
print(len(watched.found), watched.found[0].what.splitlines()[-1] if watched.found else "")
"""


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_a_misdeed_is_noticed(misdeed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONTROL, str(HERE), MISDEEDS[misdeed]],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("1 "), (done.stdout, done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_text_that_becomes_a_part_of_a_page_is_found() -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import pages\n"
        "for bad in ('<p><script></script></p>', '<p onclick=x></p>', '<p>', '</p>', '<p>\\x1b</p>',\n"
        "            '<p><!-- --></p>', '<a href=\"//x\"></a>', '<p style=x></p>', '<svg><image/></svg>'):\n"
        "    try:\n"
        "        pages.check(bad)\n"
        "    except pages.WrongPage:\n"
        "        continue\n"
        "    raise SystemExit(bad)\n"
        "pages.check('<p title=\"&lt;script&gt;\">&lt;script&gt;</p>')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
