"""The words of a framework's own constructor of a configuration, for `batchbridge check --native`.

The framework's configuration object is built in a child process: in an empty temporary folder, without devices and
network, and for a limited time. Nothing of the user's runs there, see `NativeCheck`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.native_check import NativeCheck
from batchbridge.contract.reading import Reading
from batchbridge.kit.versions import includes
from batchbridge.meaning.findings import Finding, Severity

SAYS, SILENT = "BB036", "BB037"
"""Codes: what the framework says; why it was not asked, or did not answer."""
SECONDS = 180.0
"""The time limit: importing PyTorch alone takes a minute on a slow disk."""
_MOST_WARNINGS = 10
_MOST_CHARACTERS = 500
_APART = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RAY_ADDRESS")
"""Variables of a launcher: with them a constructor would wait for other processes."""
_OFFLINE = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def native_findings(adapter: Adapter, reading: Reading, seconds: float = SECONDS) -> tuple[Finding, ...]:
    """The answer of the installed framework's constructor: an error where it raises, its warnings, and what was said
    to it otherwise than the user does; or why it was not asked."""
    title = adapter.framework
    asked = adapter.native_check(reading)
    if asked is None:
        return (_unasked(f"{title} was not asked: no check of its own is known for this configuration"),)
    if asked.installed is None:
        return (_unasked(f"{title} was not asked: it is not installed beside batchbridge"),)
    if reading.framework_version is None or not includes(f"=={reading.framework_version}", asked.installed):
        read = reading.framework_version or "an unknown version"
        text = f"{title} was not asked: {asked.installed} is installed, and the configuration is read as {read}"
        return (_unasked(text),)
    try:
        answer = _ask(asked, seconds)
    except subprocess.TimeoutExpired:
        return (_unasked(f"{title} {asked.installed} gave no answer within {seconds:g} seconds", undecided=True),)
    told = _told(f"{title} {asked.installed}", answer)
    return (*told, *(() if "failed" in answer else map(_unasked, asked.differences)))


def _told(title: str, answer: Mapping[str, Any]) -> list[Finding]:
    if "failed" in answer:
        return [_unasked(f"{title} could not be asked: {answer['failed']}", undecided=True)]
    found = [_said(f"{title} warns: {text}", "warning", text) for text in answer["warnings"]]
    if (raised := answer["raised"]) is not None:
        found.insert(0, _said(f"{title} refuses the configuration: {raised}", "error", raised))
    return found or [_unasked(f"{title} constructs its configuration without an objection")]


def _said(message: str, severity: Severity, native: str) -> Finding:
    return Finding(SAYS, severity, "config", message, native=native, source="native")


def _unasked(message: str, undecided: bool = False) -> Finding:
    return Finding(SILENT, "error" if undecided else "note", "config", message, source="native", undecided=undecided)


def _ask(asked: NativeCheck, seconds: float) -> Mapping[str, Any]:
    """The answer of a child process; `failed` where it gave none."""
    from batchbridge.render.text import one_line

    with tempfile.TemporaryDirectory(prefix="batchbridge-native-") as folder:
        question, answer = Path(folder) / "question.json", Path(folder) / "answer.json"
        said = {"place": asked.place, "settings": dict(asked.settings), "world_size": asked.world_size}
        question.write_text(json.dumps(said), encoding="utf-8")
        command = [sys.executable, "-m", "batchbridge.native_check", str(question), str(answer)]
        kept = {name: value for name, value in os.environ.items() if name not in _APART}
        environment = {**kept, **_OFFLINE, "PYTHONPATH": _path(), "TMPDIR": folder}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=seconds, check=False)
        if answer.is_file():
            found: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"failed": one_line(lines[-1])[:_MOST_CHARACTERS] if lines else f"exit code {done.returncode}"}


def _path() -> str:
    """`sys.path` without the folder in which the user works: a module there is no framework's."""
    here = Path.cwd().resolve()
    return os.pathsep.join(each for each in sys.path if each and Path(each).resolve() != here)


def _no_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise OSError("a native check has no network")


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Calls the function in this process. What cannot be imported is `failed`; `raised` is the framework's own word."""
    module, _, name = question["place"].partition(":")
    printed = io.StringIO()
    raised: str | None = None
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(printed):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                getattr(importlib.import_module(module), name)(question["settings"], question["world_size"])
            except ImportError as error:
                return {"failed": _line(f"{type(error).__name__}: {error}")}
            except SystemExit as error:
                lines = printed.getvalue().strip().splitlines()
                raised = _line(lines[-1] if lines else f"SystemExit: {error}")
            except Exception as error:
                raised = _line(f"{type(error).__name__}: {error}")
    texts = dict.fromkeys(_line(str(one.message)) for one in caught if one.category is UserWarning)
    return {"raised": raised, "warnings": list(texts)[:_MOST_WARNINGS]}


def _line(text: str) -> str:
    return " ".join(text.split())[:_MOST_CHARACTERS]


def main(question: str, answer: str) -> None:
    """The child process."""
    sys.addaudithook(_no_network)
    found = _answer(json.loads(Path(question).read_text(encoding="utf-8")))
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
