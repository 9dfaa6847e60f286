"""The weekly look at upstream, on packages made here: what it names, what it writes, and what counts as known."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # its two scripts are no package

import beneath  # noqa: E402  # found by the line above
import record  # noqa: E402  # as above
import upstream  # noqa: E402  # as above

from batchbridge.contract.evidence import Code, Package  # noqa: E402  # as above
from batchbridge.kit import fingerprints, proven  # noqa: E402  # as above

STEP, LOSS = "def step():\n    return 1\n", "def loss():\n    return 2\n"
PACKAGE = Package("toyframe", "toyframe", control={"train.py": ("step",)}, loss={"train.py": ("loss",)})
CODE = Code("toy", "batchbridge_toy", (PACKAGE,))


def package(folder: Path, text: str) -> Path:
    made = folder / "toyframe"
    made.mkdir(parents=True)
    (made / "__init__.py").write_text("")
    (made / "train.py").write_text(text)
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of adapters with one, whose record has a tested release 1.0."""
    (tmp_path / "adapters" / "batchbridge_toy").mkdir(parents=True)
    monkeypatch.setattr(record, "code_of", lambda adapter: CODE)
    monkeypatch.setattr(upstream, "code_of", lambda adapter: CODE)
    monkeypatch.setattr(upstream, "WATCHED", {"toy": ("toyframe",)})
    monkeypatch.setattr(upstream, "settings_of", lambda adapter, folders: "")
    monkeypatch.setattr(upstream, "look_beneath", lambda work, only: [])
    root = tmp_path / "adapters"
    record.record("toy", "toyframe", "1.0", package(tmp_path / "one", STEP + LOSS), "tested", root)
    file = root / "batchbridge_toy" / "proven.json"
    monkeypatch.setattr(proven, "records", lambda home: proven.parse(json.loads(file.read_text())))
    return root


def looked(tmp_path: Path, text: str, version: str = "2.0") -> tuple[Any, dict[str, tuple[Path, str]]]:
    folders = {"toyframe": (package(tmp_path / f"release {version}", text), version)}
    (row,) = upstream.look(folders)
    return row, folders


def labels(root: Path) -> dict[str, str]:
    made: dict[str, str] = json.loads((root / "batchbridge_toy" / "proven.json").read_text())["toyframe"]["labels"]
    return made


def test_a_release_with_the_same_code_asks_for_nothing_and_is_recorded_as_read(home: Path, tmp_path: Path) -> None:
    row, folders = looked(tmp_path, f"# later\n{STEP}\n{LOSS}\n\ndef other():\n    return 3\n")
    assert (row.evidence.grade, row.asks) == ("proven", False)
    assert upstream.write([row], folders, home) == ["toyframe 2.0: recorded as read for toy"]
    assert labels(home) == {"1.0": "tested", "2.0": "read"}


@pytest.mark.parametrize(
    ("text", "grade", "said"),
    [
        (STEP.replace("1", "9") + LOSS, "refused", "control flow: train.py: step"),
        (STEP + LOSS.replace("2", "9"), "measured", "loss: train.py: loss"),
        (STEP.replace("def step", "def stride") + LOSS, "refused", "control flow: train.py: step (missing)"),
    ],
)
def test_other_code_is_named_and_recorded_as_seen_which_makes_it_no_better_known(
    home: Path, tmp_path: Path, text: str, grade: str, said: str
) -> None:
    row, folders = looked(tmp_path, text)
    assert (row.evidence.grade, row.asks) == (grade, True)
    assert said in row.text()
    assert upstream.write([row], folders, home) == ["toyframe 2.0: recorded as seen for toy"]
    (again,) = upstream.look(folders)
    assert (again.evidence.grade, again.status, again.asks) == (grade, "seen", False)
    assert upstream.write([again], folders, home) == []


FEATURE = Package("toyframe", "toyframe", control={"ahead.py": ("run",)}, part="ahead")


@pytest.mark.parametrize("run", ["def run():\n    return 1\n", "def run():\n    return 2\n"])
def test_a_feature_has_a_record_of_its_own_which_other_trainers_do_not_ask_for(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    code = Code("toy", "batchbridge_toy", (PACKAGE,), parts=(FEATURE,))
    for module in (record, upstream):
        monkeypatch.setattr(module, "code_of", lambda adapter: code)
    first = package(tmp_path / "first", STEP + LOSS)
    (first / "ahead.py").write_text("def run():\n    return 1\n")
    record.record("toy", "toyframe:ahead", "1.0", first, "tested", home)
    newer = package(tmp_path / "newer", STEP + LOSS)
    (newer / "ahead.py").write_text(run)
    folders = {"toyframe": (newer, "2.0")}
    plain, feature = upstream.look(folders)
    changed = "2" in run
    assert (plain.package.title, plain.asks) == ("toyframe", False)
    assert (feature.package.title, feature.asks) == ("toyframe:ahead", changed)
    assert upstream.write([plain, feature], folders, home) == [
        "toyframe 2.0: recorded as read for toy",
        f"toyframe:ahead 2.0: recorded as {'seen' if changed else 'read'} for toy",
    ]
    where = {"toyframe": newer}
    assert proven.evidence(code.used(), where).grade == "proven"
    assert proven.evidence(code.used(("ahead",)), where).grade == ("refused" if changed else "proven")


def test_settings_that_differ_are_named_and_ask_for_a_reader(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "settings_of", lambda adapter, folders: "adds brand_new (True)")
    row, _ = looked(tmp_path, STEP + LOSS)
    assert row.asks
    assert "settings: adds brand_new (True)" in row.text()


def test_a_release_that_was_read_is_known_afterwards(home: Path, tmp_path: Path) -> None:
    row, folders = looked(tmp_path, STEP.replace("1", "9") + LOSS)
    record.record("toy", "toyframe", "2.0", folders["toyframe"][0], "read", home)
    (again,) = upstream.look(folders)
    assert (row.evidence.grade, again.evidence.grade, again.evidence.control) == ("refused", "measured", ())


def test_recording_a_release_again_replaces_it(home: Path, tmp_path: Path) -> None:
    for name, text in (("a", STEP + LOSS), ("b", STEP.replace("1", "9") + LOSS)):
        record.record("toy", "toyframe", "2.0", package(tmp_path / name, text), "seen", home)
    functions = json.loads((home / "batchbridge_toy" / "proven.json").read_text())["toyframe"]["functions"]
    assert sorted(functions["train.py: step"].values()) == ["1.0", "2.0"]
    assert list(functions["train.py: loss"].values()) == ["1.0 2.0"]


def archive(folder: Path, kind: str) -> Path:
    """A release as an index has it: a wheel, one with a data folder, or a source distribution."""
    made = package(folder / "made", STEP + LOSS)
    if kind == "sdist":
        file = folder / "toyframe-2.0.tar.gz"
        with tarfile.open(file, "w:gz") as source:
            source.add(made, "toyframe-2.0/toyframe")
        return file
    file = folder / "toyframe-2.0-py3-none-any.whl"
    prefix = "toyframe-2.0.data/purelib/" if kind == "data" else ""
    with zipfile.ZipFile(file, "w") as wheel:
        for one in made.iterdir():
            wheel.write(one, f"{prefix}toyframe/{one.name}")
    return file


@pytest.mark.parametrize("kind", ["wheel", "data", "sdist"])
def test_every_form_of_a_release_is_unpacked_and_its_version_known(tmp_path: Path, kind: str) -> None:
    file = archive(tmp_path, kind)
    assert record.version_in(file.name) == "2.0"
    folder = record.unpacked(file, "toyframe", tmp_path / "unpacked")
    assert fingerprints.of_package(PACKAGE, folder) == fingerprints.of_package(PACKAGE, tmp_path / "made" / "toyframe")


def test_an_archive_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no package other"):
        record.unpacked(archive(tmp_path, "wheel"), "other", tmp_path / "unpacked")


def test_the_watched_packages_are_those_of_the_tables() -> None:
    for adapter, names in upstream.WATCHED.items():
        assert names == tuple(package.name for package in record.code_of(adapter).packages)


def test_a_package_that_two_adapters_watch_is_fetched_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetched(name: str, version: str | None, into: Path) -> tuple[Path, str]:
        asked.append(name)
        return package(into / name, STEP + LOSS), "1.0"

    monkeypatch.setattr(upstream, "WATCHED", {"toy": ("toyframe",), "toy_too": ("toyframe",)})
    monkeypatch.setattr(upstream, "fetched", fetched)
    assert upstream.main([]) == 0
    assert asked == ["toyframe"]


LIBRARY = Package("toylib", "toy-lib", control={"call.py": ("called", "gone")})


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("def called():\n    return 1\ndef gone():\n    return 2\n", ()),
        ("def called():\n    return 9\n", ("call.py: called", "call.py: gone")),
    ],
)
def test_a_library_below_names_what_differs(tmp_path: Path, text: str, changed: tuple[str, ...]) -> None:
    for name, body in (("old", "def called():\n    return 1\ndef gone():\n    return 2\n"), ("new", text)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "call.py").write_text(body)
    known = {"toylib": {"version": "1.0", "functions": fingerprints.of_package(LIBRARY, tmp_path / "old")}}
    row = beneath.compared(LIBRARY, tmp_path / "new", "2.0", known)
    assert (row.changed, row.asks) == (changed, bool(changed))
    assert row.text().startswith("toylib        2.0        newer than 1.0")
    file = tmp_path / "beneath.json"
    file.write_text(json.dumps(known))
    assert beneath.see([row], file) == (["toylib 2.0: recorded as seen"] if changed else [])
    again = beneath.compared(LIBRARY, tmp_path / "new", "2.0", beneath.known(file))
    assert not again.asks
    assert beneath.compared(LIBRARY, tmp_path / "new", "3.0", beneath.known(file)).asks is bool(changed)


def test_every_library_below_is_recorded_with_all_of_its_functions() -> None:
    known = beneath.known()
    assert list(known) == [package.name for package in beneath.LIBRARIES]
    for package in beneath.LIBRARIES:
        functions = known[package.name]["functions"]
        assert isinstance(functions, dict)
        assert set(functions) == {f"{file}: {name}" for file, names in package.functions.items() for name in names}
        assert all(functions.values()), "a function that is not there was recorded"
        assert known[package.name]["version"] == beneath.pinned(str(package.distribution), "verl")
    assert all(beneath.pinned(*one) for one in beneath.BY_VERSION.items())


def test_a_main_branch_is_compared_and_never_recorded(home: Path, tmp_path: Path) -> None:
    checkout = package(tmp_path / "checkout", STEP.replace("1", "9") + LOSS)
    rows = upstream.look(upstream.checkouts([f"toyframe={checkout}"]))
    assert [(row.version, row.asks) for row in rows] == [("main", True)]
    assert upstream.write(rows, {"toyframe": (checkout, "main")}, home) == []
    with pytest.raises(ValueError, match="is no folder of the package toyframe"):
        upstream.checkouts([f"toyframe={tmp_path}"])


def test_a_main_branch_is_read_with_the_packages_that_its_settings_stand_in(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's checkout alone would have lost the hundred settings that transformers declares."""
    checkout, newest = (package(tmp_path / name, STEP + LOSS) for name in ("checkout", "newest"))
    seen: list[Any] = []
    monkeypatch.setattr(upstream, "WATCHED", {"toy": ("toyframe", "toybase")})
    monkeypatch.setattr(upstream, "settings_of", lambda adapter, folders: seen.append(dict(folders)) or "")
    rows = upstream.look({"toyframe": (checkout, "main")}, {"toyframe": (newest, "2"), "toybase": (newest, "3")})
    assert [row.version for row in rows] == ["main"]
    assert seen == [{"toyframe": checkout, "toybase": newest}]


def test_a_package_without_a_wheel_for_this_python_is_read_from_an_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenRLHF 0.11.2 has wheels for Python 3.10 to 3.12 alone, and the look is at home on the newest."""
    asked: list[bool] = []

    def pip(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        older = "--python-version" in words
        asked.append(older)
        if older:
            target = Path(words[words.index("--dest") + 1])
            target.mkdir(parents=True)
            with zipfile.ZipFile(target / "demo-1.2-cp312-cp312-manylinux1_x86_64.whl", "w") as wheel:
                wheel.writestr("demo/__init__.py", "")
        assert check is older, "the last way has to work"
        return subprocess.CompletedProcess(words, 0 if older else 1)

    monkeypatch.setattr(record.subprocess, "run", pip)
    folder, version = record.fetched("demo", None, tmp_path)
    assert (folder.name, version, asked) == ("demo", "1.2", [False, True])
