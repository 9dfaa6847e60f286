"""A ledger that is named by a URL reads as the folder that it was copied from; fsspec fetches it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_ledger import ORDERED, sound_rows

from batchbridge.cli.main import main
from batchbridge.errors import LedgerError
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.remote import is_url
from batchbridge.ledger.verifying import verify

RANKS = 3


@pytest.fixture
def memory() -> Iterator[Any]:
    """The store in memory, empty again afterwards."""
    fsspec = pytest.importorskip("fsspec", reason="the extra remote, which CI's core session has")
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "file"])
def put(request: pytest.FixtureRequest, memory: Any) -> Any:
    """Puts a local ledger into a store, and returns its URL."""

    def put(folder: Path) -> str:
        if request.param == "file":
            return folder.resolve().as_uri()
        memory.put(f"{folder}/", f"/runs/{folder.name}/", recursive=True)
        return f"memory://runs/{folder.name}"

    return put


def test_a_url_reads_as_its_folder(ledger, put) -> None:
    folder = ledger("a", world_size=RANKS)
    url = put(folder)
    assert list(read_steps(url)) == list(read_steps(folder))
    assert read_headers(url + "/") == read_headers(folder)
    assert verify(url).checks == verify(folder).checks
    assert diff(url, folder).steps_compared == 4


def test_a_difference_is_found_in_a_store(ledger, put) -> None:
    def other(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        scalars["learning_rate"] = 0.002 if step == 2 else 0.001

    a, b = ledger("a", world_size=RANKS), ledger("b", world_size=RANKS, edit=other)
    found, local = diff(put(a), put(b)), diff(a, b)
    assert (
        (found.step, found.aspect, found.detail)
        == (local.step, local.aspect, local.detail)
        == (2, "clock", found.detail)
    )
    assert found.b.folder.endswith("/b")
    assert "://" in found.b.folder


def test_what_was_changed_in_a_store_is_named_by_its_url(ledger, memory) -> None:
    folder = ledger("a", world_size=RANKS, spec=ORDERED, rows_of=sound_rows)
    lines = (folder / "rank-00001.jsonl").read_bytes()
    memory.put(f"{folder}/", "/runs/a/", recursive=True)
    memory.pipe("/runs/a/rank-00001.jsonl", lines.replace(b'"response_tokens":[0', b'"response_tokens":[1', 1))
    assert not verify(folder).departed
    assert verify("memory://runs/a").departed
    memory.pipe("/runs/a/rank-00001.jsonl", lines.replace(b'"step":1', b'"step":7', 1))
    with pytest.raises(LedgerError, match=r"^memory://runs/a/rank-00001\.jsonl:3: step 7, where step 1 should follow"):
        read_steps("memory://runs/a")
    memory.rm("/runs/a/rank-00001.jsonl")
    with pytest.raises(LedgerError, match=r"^memory://runs/a/rank-00000\.jsonl: .*no file of rank 1"):
        read_steps("memory://runs/a")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://nothing/here", "no ledger: there is no rank"),
        ("nostore://bucket/run", "it cannot be fetched: ValueError: Protocol not known: nostore"),
    ],
)
def test_what_cannot_be_fetched_is_refused(memory, url: str, said: str) -> None:
    with pytest.raises(LedgerError, match=f"^{url}: {said}"):
        read_steps(url)


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["ledger", "show", "s3://bucket/run"]) == 2
    assert capsys.readouterr().err == "ledger: s3://bucket/run: a URL needs fsspec: pip install 'batchbridge[remote]'\n"


def test_what_was_fetched_goes_with_the_ledger(ledger, put) -> None:
    read = Ledger(put(ledger("a", world_size=RANKS)))
    assert read._fetched is not None
    place = read._fetched.folder
    assert len(list(place.iterdir())) == RANKS
    steps = read.steps(0)
    del read
    assert len(list(steps)) == 4
    del steps
    assert not place.exists()


def test_every_command_takes_a_url(ledger, put, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ledger("a", world_size=RANKS, spec=ORDERED, rows_of=sound_rows)
    url = put(folder)
    for arguments in (
        ["show", url],
        ["show", url, "--summary"],
        ["show", url, "--json"],
        ["diff", url, str(folder)],
        ["export", url, "--csv", str(tmp_path / "remote.csv")],
        ["export", str(folder), "--csv", str(tmp_path / "local.csv")],
        ["verify", url],
    ):
        assert main(["ledger", *arguments]) == 0, capsys.readouterr()
    assert (tmp_path / "remote.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()


@pytest.mark.parametrize(
    ("folder", "remote"),
    [("s3://b/run", True), ("simplecache::s3://b/run", True), ("a/b", False), ("C:\\runs", False), ("./a://b", False)],
)
def test_a_url_is_told_from_a_folder(folder: str, remote: bool) -> None:
    assert is_url(folder) is remote
    assert not is_url(Path(folder))
