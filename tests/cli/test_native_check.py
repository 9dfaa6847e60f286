"""`check --native`: a framework's own constructor is asked in a child process, and what it says is a finding."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge import Reading, read
from batchbridge.cli.main import main
from batchbridge.contract import plugins
from batchbridge.contract.native_check import NativeCheck
from batchbridge.native_check import native_findings

FRAMEWORK = '''
"""A tiny framework."""
import os, socket, sys, time, warnings
from pathlib import Path

def build(settings, world_size):
    step = settings["toy.step"]
    if step == 1:
        raise ValueError("a step of one\\nis too small")
    if step == 2:
        warnings.warn("a step of two is slow")
    if step == 3:
        print("tiny: error: no such option", file=sys.stderr)
        raise SystemExit(2)
    if step == 4:
        time.sleep(60)
    if step == 5:
        socket.create_connection(("127.0.0.1", 9))
    if step == 6:
        said = [os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HF_HUB_OFFLINE"], "RANK" in os.environ, world_size]
        raise RuntimeError(f"{said} {sorted(os.listdir())}")
    if step == 7:
        import of_the_user
    if step == 9:
        os._exit(3)
'''


@pytest.fixture
def asking(toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The toy framework with a constructor, installed in the version that is read unless another one is said."""
    asked: dict[str, Any] = {"version": "same", "step": 1}
    home, work = tmp_path / "site", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "tiny_framework.py").write_text(FRAMEWORK, encoding="utf-8")
    (work / "of_the_user.py").write_text("raise SystemExit('code of the user ran')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.syspath_prepend(str(work))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.chdir(work)

    def native_check(self: Any, reading: Reading) -> NativeCheck:
        known = reading.framework_version if asked["version"] == "same" else asked["version"]
        settings = {"toy.step": asked["step"]}
        return NativeCheck(place="tiny_framework:build", settings=settings, installed=known, world_size=2)

    monkeypatch.setattr(toy.ToyAdapter, "native_check", native_check)

    def ask(step: int, version: str | None = "same", seconds: float = 60.0) -> list[tuple[str, str, str, bool]]:
        asked.update(step=step, version=version)
        found = native_findings(plugins.adapters()["toy"], read({"toy.step": 8}, framework="toy"), seconds)
        assert {one.source for one in found} == {"native"}
        return [(one.code, one.severity, one.message, one.undecided) for one in found]

    return ask


def test_what_it_raises_is_an_error_in_one_line(asking: Callable[..., Any]) -> None:
    ((code, severity, message, undecided),) = asking(1)
    assert (code, severity, undecided) == ("BB036", "error", False)
    assert message.endswith("refuses the configuration: ValueError: a step of one is too small")


def test_a_warning_is_a_warning(asking: Callable[..., Any]) -> None:
    ((code, severity, message, _),) = asking(2)
    assert (code, severity) == ("BB036", "warning")
    assert "a step of two is slow" in message


def test_the_last_line_of_a_parser_that_exits_is_said(asking: Callable[..., Any]) -> None:
    ((_, severity, message, _),) = asking(3)
    assert severity == "error"
    assert "tiny: error: no such option" in message


def test_one_that_gives_no_answer_in_time_leaves_the_verdict_open(asking: Callable[..., Any]) -> None:
    ((code, severity, message, undecided),) = asking(4, seconds=4.0)
    assert (code, severity, undecided) == ("BB037", "error", True)
    assert "no answer within 4 seconds" in message


def test_one_that_dies_leaves_the_verdict_open(asking: Callable[..., Any]) -> None:
    ((code, _, message, undecided),) = asking(9)
    assert (code, undecided) == ("BB037", True)
    assert "could not be asked: exit code 3" in message


def test_there_is_no_network(asking: Callable[..., Any]) -> None:
    ((_, _, message, _),) = asking(5)
    assert "a native check has no network" in message


def test_there_is_no_device_no_launcher_and_an_empty_folder(asking: Callable[..., Any]) -> None:
    ((_, _, message, _),) = asking(6)
    assert "['', '1', False, 2] ['question.json']" in message


def test_a_module_in_the_folder_of_the_user_is_not_imported(asking: Callable[..., Any]) -> None:
    ((code, _, message, undecided),) = asking(7)
    assert (code, undecided) == ("BB037", True)
    assert "No module named 'of_the_user'" in message


def test_one_that_does_not_object_is_a_note(asking: Callable[..., Any]) -> None:
    ((code, severity, message, _),) = asking(8)
    assert (code, severity) == ("BB037", "note")
    assert "without an objection" in message


@pytest.mark.parametrize(("version", "said"), [(None, "it is not installed"), ("0.0.1", "0.0.1 is installed")])
def test_one_of_another_version_or_none_is_not_asked(asking: Callable[..., Any], version: Any, said: str) -> None:
    ((code, severity, message, _),) = asking(1, version)
    assert (code, severity) == ("BB037", "note")
    assert said in message


def test_the_command_has_exit_code_2_and_asks_only_with_the_option(
    asking: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("toy.json").write_text(json.dumps({"toy.step": 8}), encoding="utf-8")
    words = ["check", "toy.json", "--framework", "toy"]
    main(words)
    captured = capsys.readouterr()
    assert (
        captured.out.splitlines()[-1]
        == "not asked: the framework's own constructor; --native asks it where it is installed"
    )
    assert captured.out.count("not asked") == 1
    assert captured.err == ""
    for silent in (["--json"], ["--output-format", "github"], ["--output-format", "sarif"], ["--diff"]):
        main([*words, *silent])
        captured = capsys.readouterr()
        assert "not asked" not in captured.out + captured.err
    assert main([*words, "--json", "--native"]) == 2
    captured = capsys.readouterr()
    (found,) = (one for one in json.loads(captured.out)["results"][0]["findings"] if one["code"] == "BB036")
    assert found["source"] == "native"
    assert "not asked" not in captured.out + captured.err
    assert "tiny_framework" not in sys.modules
