"""`check` stays within 150 ms of CPU on what users have, launch scripts, recipes and Python programs.

What a command imports is held: kilobytes of BatchBridge's own source, which decide how long it takes where no
bytecode is cached, and modules that cost more than they give. The bars in milliseconds are for a processor on which
`calibration_ms` of the benchmark takes `REFERENCE_MS`, and grow with it on a slower one, or on one that others slow
down."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge_on_cpu.scripts import module_at

REFERENCE_MS = 103
RUNS = 12
LIMIT_MS = 150
"""User and system time of the process, interpreter included, with cached bytecode."""
CONVERT_MS = 180
EVERY_MS = 300
"""A recipe under every known version of TRL."""
SCRIPT_MS = 150
"""A script of a folder, under every known version of verl: 200 in 15 s on two cores."""
OWN_KB = {
    "trl, YAML": 950,
    "trl, Python": 1155,
    "open_r1, script and recipe": 1165,
    "verl, script": 1290,
    "easyr1, script": 1065,
    "openrlhf, script": 1135,
    "open_instruct, script": 1065,
    "trl, mostly bash": 1165,
    "trl, YAML, no framework named": 950,
    "convert: trl, YAML, to verl": 1335,
    "convert: verl, script, to trl": 1540,
}
"""BatchBridge's own source that a command imports, in thousands of bytes: 5 % above what it was when last set. A
mirror with room, no gate for a line: what fails it is a whole room that a command does not need."""
NEVER = {
    "batchbridge.kit.workers",
    "batchbridge.ledger.reading",
    "batchbridge.ledger.records",
    "batchbridge.testing",
    "email",
    "importlib.metadata",
    "importlib.resources",
    "packaging",
    "pydantic",
    "rich",
    "socket",
    "tempfile",
}
"""Modules that none of these commands imports."""
NAMES = (
    "trl, YAML",
    "trl, Python",
    "open_r1, script and recipe",
    "verl, script",
    "easyr1, script",
    "openrlhf, script",
    "open_instruct, script",
    "trl, mostly bash",
)


def benchmark() -> ModuleType:
    """benchmarks/cli_cpu_time.py, which has the inputs and measures."""
    path = Path(__file__).parents[2] / "benchmarks" / "cli_cpu_time.py"
    return module_at(path, "cli_cpu_time")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs, and the bytecode of everything that `check` and the calibration import."""
    path = tmp_path_factory.mktemp("inputs")
    commands = benchmark().lay(path)
    benchmark().cpu_ms(commands[NAMES[0]], path, cached=True)
    benchmark().calibration_ms(path)
    return path


CONVERSIONS = ("convert: trl, YAML, to verl", "convert: verl, script, to trl")


def test_every_conversion_of_the_benchmark_is_tested() -> None:
    assert tuple(benchmark().conversions()) == CONVERSIONS


def test_every_input_of_the_benchmark_is_tested() -> None:
    assert (*tuple(benchmark().inputs()), benchmark().DETECTED) == (*NAMES, DETECTED)


DETECTED = "trl, YAML, no framework named"


def within(bar: float, command: list[str], folder: Path) -> None:
    """Holds the fastest of a few runs against the bar, and where others never let one alone the median, each run beside
    a calibration of its own. Other processes slow a run down and never speed one up: a command that is too slow fails
    after any number of runs."""
    module = benchmark()
    module.cpu_ms(command, folder, cached=True)  # compiles what only this command needs
    spent, scale = [], []
    for _ in range(RUNS):
        spent.append(module.cpu_ms(command, folder, cached=True))
        scale.append(max(1.0, module.calibration_ms(folder) / REFERENCE_MS))
        if min(spent) < bar * min(scale):
            return
    usual = statistics.median(one / beside for one, beside in zip(spent, scale, strict=True))
    assert usual < bar, f"{usual:.0f} ms at least, and {bar} are allowed"


def command(name: str, folder: Path) -> list[str]:
    """The arguments of a command of the benchmark."""
    commands: dict[str, list[str]] = {**benchmark().lay(folder), **benchmark().conversions()}
    return commands[name]


@pytest.mark.parametrize("name", OWN_KB)
def test_a_command_imports_what_it_needs(name: str, folder: Path) -> None:
    sources = benchmark().sources(command(name, folder), folder)
    own = sum(size for module, size in sources.items() if module.startswith(("batchbridge", "bashread", "pyread")))
    assert own / 1000 <= OWN_KB[name], sorted(sources)
    assert not sources.keys() & NEVER


@pytest.mark.parametrize("name", ["trl, YAML", "verl, script"])
def test_checking_one_framework_imports_no_other_and_no_other_command(name: str, folder: Path) -> None:
    sources = benchmark().sources(command(name, folder), folder)
    parts = {module.split(".")[0] for module in sources if module.startswith("batchbridge_") and "." in module}
    assert parts == {f"batchbridge_{name.split(',')[0]}"}
    rooms = {module.split(".")[1] for module in sources if module.startswith("batchbridge.")}
    assert not rooms & {"comparing", "diagnosis", "rule_page", "testing"}


@pytest.mark.parametrize(
    ("name", "imported"), [("verl, script", False), ("openrlhf, script", False), ("trl, YAML", True)]
)
def test_words_that_an_adapter_reads_itself_are_not_parsed_as_yaml(name: str, imported: bool, folder: Path) -> None:
    words = [*command(name, folder), "--json"]  # as text, ways out are read again
    assert ("yaml" in benchmark().sources(words, folder)) == imported


def test_a_module_that_is_imported_is_counted(folder: Path) -> None:
    said = benchmark().sources(["rule", "BB-TRL-021"], folder)
    assert "batchbridge.rule_page" in said
    assert said["batchbridge.rule_page"] > 1000


@pytest.mark.parametrize("name", [*NAMES, DETECTED])
def test_check_takes_at_most_150_ms_of_cpu(name: str, folder: Path) -> None:
    within(LIMIT_MS, benchmark().lay(folder)[name], folder)


def test_every_version_of_trl_is_judged_within_300_ms(folder: Path) -> None:
    within(EVERY_MS, benchmark().lay(folder)[benchmark().EVERY], folder)


def test_200_scripts_take_15_s_on_two_cores(folder: Path) -> None:
    within(SCRIPT_MS * benchmark().SCRIPTS, benchmark().lay(folder)[benchmark().FOLDER], folder)


def test_a_bar_that_is_missed_fails(folder: Path) -> None:
    with pytest.raises(AssertionError, match=r"ms at least, and \d+ are allowed"):
        within(1, ["--help"], folder)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_convert_takes_at_most_180_ms_of_cpu(name: str, folder: Path) -> None:
    benchmark().lay(folder)
    within(CONVERT_MS, benchmark().conversions()[name], folder)


def test_a_command_that_fails_is_not_measured(folder: Path) -> None:
    with pytest.raises(SystemExit, match="exited with 64"):
        benchmark().cpu_ms(["check", "--no-such-option"], folder, cached=True)
