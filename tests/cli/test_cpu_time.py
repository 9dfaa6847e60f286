"""`check` and `convert` stay within 600 ms of CPU on what users have: launch scripts and recipes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

LIMIT_MS = 600
"""User and system time of the process, interpreter included, with cached bytecode."""
NAMES = (
    "trl, YAML",
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
    spec = importlib.util.spec_from_file_location("cli_cpu_time", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cli_cpu_time"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs, and the bytecode of everything that `check` imports."""
    path = tmp_path_factory.mktemp("inputs")
    commands = benchmark().lay(path)
    benchmark().cpu_ms(commands[NAMES[0]], path, cached=True)
    return path


CONVERSIONS = ("convert: trl, YAML, to verl", "convert: verl, script, to trl")


def test_every_conversion_of_the_benchmark_is_tested() -> None:
    assert tuple(benchmark().conversions()) == CONVERSIONS


def test_every_input_of_the_benchmark_is_tested() -> None:
    assert tuple(benchmark().inputs()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_check_takes_at_most_600_ms_of_cpu(name: str, folder: Path) -> None:
    command = benchmark().lay(folder)[name]
    benchmark().cpu_ms(command, folder, cached=True)  # compiles what only this framework needs
    assert min(benchmark().cpu_ms(command, folder, cached=True) for _ in range(3)) < LIMIT_MS


@pytest.mark.parametrize("name", CONVERSIONS)
def test_convert_takes_at_most_600_ms_of_cpu(name: str, folder: Path) -> None:
    benchmark().lay(folder)
    command = benchmark().conversions()[name]
    benchmark().cpu_ms(command, folder, cached=True)
    assert min(benchmark().cpu_ms(command, folder, cached=True) for _ in range(3)) < LIMIT_MS


def test_a_command_that_fails_is_not_measured(folder: Path) -> None:
    with pytest.raises(SystemExit, match="exited with 64"):
        benchmark().cpu_ms(["check", "--no-such-option"], folder, cached=True)
