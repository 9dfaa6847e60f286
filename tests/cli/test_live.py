"""`batchbridge explain FILE --live`: the state that the page begins with, and what is refused.

Its own file: it is the one command that stays.
"""

from __future__ import annotations

import json
import webbrowser
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from batchbridge.playground.links import state_of_link
from batchbridge.playground.serving import LivePage

SCRIPT = """accelerate launch --num_processes ${GPUS:-8} trl/scripts/grpo.py --per_device_train_batch_size 16 \\
    --gradient_accumulation_steps 4 --num_generations 14
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Any) -> Any:
    """The command line in this process, in an empty folder, with the adapters that are installed."""
    monkeypatch.chdir(tmp_path)
    return typed


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser would open; the server is interrupted at once, as by Ctrl-C."""
    addresses: list[str] = []

    def interrupted(server: ThreadingHTTPServer, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupted)
    return addresses


def test_the_page_begins_with_the_file_and_what_was_said_of_it(run: Any, tmp_path: Path, opened: list[str]) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT, encoding="utf-8")
    asked = ("--gpus", "7", "--framework-version", "1.16.0", "--set", "num_iterations=2", "--env", "GPUS=7")
    code, out, err = run("explain", str(file), "--live", *asked)
    assert code == 0
    (address,) = opened
    assert state_of_link(address) == {
        "text": SCRIPT,
        "version": "1.16.0",
        "devices": 7,
        "set": {"num_iterations": 2},
    }
    assert address.startswith("http://127.0.0.1:")
    assert f"{address.partition('#')[0]} answers for {file}" in out + err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--live",), "--live needs a FILE"),
        (("-", "--live"), "--live needs a FILE"),
        (("recipe.yaml", "--live", "--json"), "neither --json nor --html"),
        (("recipe.yaml", "--live", "--html", "a.html"), "neither --json nor --html"),
        (("absent.yaml", "--live"), "--live absent.yaml: there is no such file"),
        (("picture.yaml", "--live"), "--live picture.yaml: "),
    ],
)
def test_what_has_no_page_is_refused(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str], words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("num_generations: 8\n", encoding="utf-8")
    Path("picture.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xd8")
    code, _, err = run("explain", *words)
    assert code == 64
    assert said in err
    assert opened == []


def test_the_page_s_answer_is_explain_s_verdict(run: Any, tmp_path: Path, opened: list[str]) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT, encoding="utf-8")
    page = LivePage(SCRIPT, file, {}, {"env": {"GPUS": "7"}, "command": None})
    with suppress(KeyboardInterrupt):
        page.serve()
    said = page.answer({"want": "meaning", "text": SCRIPT, "version": "1.16.0", "devices": None})
    words = ("explain", str(file), "--json", "--framework-version", "1.16.0", "--env", "GPUS=7")
    (told,) = json.loads(run(*words)[1])["results"]
    assert (said["verdict"], said["devices"]) == (told["verdict"], 7)
