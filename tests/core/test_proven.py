"""Code is told by its functions' text: what is proven, measured and refused, on packages made here."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge.contract.evidence import Code, Evidence, Package, Record
from batchbridge.errors import CannotAttach
from batchbridge.kit import fingerprints, proven
from batchbridge.kit.proven import UNPROVEN, evidence, evidence_here, parse, require

NAME = "framework_of_proven_tests"
LOOP, LOSS = "    def step(self):\n        return 'step'\n", "    def loss(self):\n        return 'loss'\n"
TEXT = f"import functools\n\n\ndef help():\n    return 1\n\n\nclass Trainer:\n{LOOP}\n{LOSS}"
PACKAGE = Package(NAME, None, control={"train.py": ("Trainer.step", "help")}, loss={"train.py": ("Trainer.loss",)})
CODE = Code("toy", "nowhere", (PACKAGE,))


def made(folder: Path, text: str = TEXT) -> Path:
    """The package's folder, with this text as its module."""
    package = folder / NAME
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(text, encoding="utf-8")
    return package


def recorded(folder: Path, **releases: tuple[str, str]) -> dict[str, Record]:
    """Records of releases: label to status and text."""
    functions: dict[str, dict[str, str]] = {}
    for label, (_, text) in releases.items():
        for key, digest in fingerprints.of_package(PACKAGE, made(folder / label, text)).items():
            known = functions.setdefault(key, {})
            known[digest] = f"{known.get(digest, '')} {label}".strip()
    return parse({NAME: {"labels": {label: status for label, (status, _) in releases.items()}, "functions": functions}})


def graded(folder: Path, text: str, **releases: tuple[str, str]) -> Evidence:
    known = recorded(folder / "known", **(releases or {"v1": ("tested", TEXT)}))
    return evidence(CODE, {NAME: made(folder / "here", text)}, known=known)


def test_code_of_a_tested_release_is_proven_and_its_label_named(tmp_path: Path) -> None:
    found = graded(tmp_path, TEXT)
    assert (found.grade, found.label) == ("proven", f"{NAME} v1")
    assert found.text() == f"proven: the native tests ran on this code ({NAME} v1)"


def test_what_is_not_listed_may_change(tmp_path: Path) -> None:
    assert graded(tmp_path, TEXT + "\n\ndef other():\n    return 2\n").grade == "proven"


def test_a_changed_control_function_is_refused_and_named(tmp_path: Path) -> None:
    found = graded(tmp_path, TEXT.replace("'step'", "'skip'"))
    assert (found.grade, found.control, found.loss) == ("refused", (f"{NAME} train.py: Trainer.step",), ())
    assert found.label is None


def test_a_changed_loss_alone_is_measured(tmp_path: Path) -> None:
    found = graded(tmp_path, TEXT.replace("'loss'", "'lost'"))
    assert (found.grade, found.control, found.loss) == ("measured", (), (f"{NAME} train.py: Trainer.loss",))
    assert "a loss that is not known: " in found.text()


@pytest.mark.parametrize(("old", "grade"), [("def step", "refused"), ("def help", "refused"), ("def loss", "measured")])
def test_a_renamed_function_is_missing(tmp_path: Path, old: str, grade: str) -> None:
    found = graded(tmp_path, TEXT.replace(old, f"{old}_of_batch"))
    assert found.grade == grade
    assert (found.control or found.loss)[0].endswith("(missing)")


def test_a_function_that_another_known_release_lacked_is_still_missed_when_it_is_renamed(tmp_path: Path) -> None:
    older = TEXT.replace("def help", "def aid").replace(LOSS, "")
    both = {"v1": ("tested", older), "v2": ("tested", TEXT)}
    assert graded(tmp_path / "older", older, **both).grade == "proven"
    found = graded(tmp_path / "other", TEXT.replace("def help", "def aid"), **both)
    assert found.control == (f"{NAME} train.py: help (missing)",)


def test_a_release_that_was_only_read_is_measured(tmp_path: Path) -> None:
    other = TEXT.replace("'step'", "'step '")
    found = graded(tmp_path, other, v1=("tested", TEXT), v2=("read", other))
    assert (found.grade, found.label, found.read) == ("measured", f"{NAME} v2", (f"{NAME} train.py: Trainer.step",))


def test_a_release_that_was_only_seen_is_refused_under_its_name(tmp_path: Path) -> None:
    other = TEXT.replace("'step'", "'step '")
    found = graded(tmp_path, other, v1=("tested", TEXT), v2=("seen", other))
    assert (found.grade, found.label) == ("refused", f"{NAME} v2")


def test_functions_of_several_tested_releases_together_are_measured(tmp_path: Path) -> None:
    first, second = TEXT.replace("'step'", "'a'"), TEXT.replace("'loss'", "'b'")
    mixed = TEXT.replace("'step'", "'a'").replace("'loss'", "'b'")
    found = graded(tmp_path, mixed, v1=("tested", first), v2=("tested", second))
    assert (found.grade, found.label) == ("measured", None)
    assert found.read == (f"{NAME}, whose functions are those of several releases",)


def test_the_label_is_the_installed_version_where_several_releases_have_this_code(tmp_path: Path) -> None:
    known = recorded(tmp_path, v1=("tested", TEXT), v2=("tested", TEXT), v3=("read", TEXT))
    for installed, label in (("v1", "v1"), ("v3", "v3"), ("v4", "v2"), (None, "v2")):
        found = evidence(CODE, {NAME: tmp_path / "v1" / NAME}, installed={NAME: installed}, known=known)
        assert (found.grade, found.labels[NAME]) == ("proven", label)


def test_a_package_that_is_not_there_is_refused() -> None:
    assert evidence(CODE, {NAME: None}, known={}).grade == "refused"


def test_evidence_is_json(tmp_path: Path) -> None:
    made = graded(tmp_path, TEXT.replace("'loss'", "'lost'")).to_dict()
    assert json.loads(json.dumps(made)) == made
    assert set(made) == {"grade", "labels", "control", "loss", "read", "by_effect"}


# ---- attaching


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package, installed, imported, and recorded as tested."""
    made(tmp_path)
    known = recorded(tmp_path / "known", v1=("tested", TEXT))
    monkeypatch.setattr(proven, "records", lambda home: known)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module(f"{NAME}.train")
    for name in (NAME, f"{NAME}.train"):
        sys.modules.pop(name, None)


def test_a_trainer_of_known_code_is_attached(framework: ModuleType) -> None:
    assert require(CODE, (), framework.Trainer()).grade == "proven"


def test_changed_control_flow_is_refused_naming_the_function_and_the_remedy(framework: ModuleType) -> None:
    made(Path(str(framework.__file__)).parents[1], TEXT.replace("'step'", "'skip'"))
    with pytest.raises(CannotAttach, match=r"Trainer\.step") as caught:
        require(CODE, ())
    assert set(caught.value.reasons) == {UNPROVEN}
    assert f'allow=("{UNPROVEN}",)' in caught.value.reasons[UNPROVEN]


def test_control_flow_that_is_allowed_is_measured(framework: ModuleType) -> None:
    made(Path(str(framework.__file__)).parents[1], TEXT.replace("'step'", "'skip'"))
    found = require(CODE, (UNPROVEN,))
    assert (found.grade, found.control) == ("measured", (f"{NAME} train.py: Trainer.step",))


def test_a_version_below_the_oldest_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchbridge.kit.versions.installed", lambda distribution: "0.9")
    code = Code("toy", "nowhere", (replace(PACKAGE, distribution="toy"),), oldest="1.0")
    with pytest.raises(CannotAttach, match=r"0\.9 is older than 1\.0") as caught:
        require(code, (UNPROVEN,))
    assert set(caught.value.reasons) == {"version"}


def overriding(framework: ModuleType, method: str) -> Any:
    return type("Mine", (framework.Trainer,), {method: lambda self: "mine"})()


@pytest.mark.parametrize(("method", "grade"), [("step", "refused"), ("loss", "measured"), ("log", "proven")])
def test_a_method_that_a_subclass_overrides_is_not_the_frameworks(
    framework: ModuleType, method: str, grade: str
) -> None:
    found = evidence_here(CODE, overriding(framework, method))
    assert found.grade == grade
    assert [name.split(" ")[0] for name in (*found.control, *found.loss)] == (
        [] if grade == "proven" else [f"{__name__}.Mine.{method}"]
    )


@pytest.mark.parametrize(("method", "grade"), [("step", "refused"), ("loss", "measured")])
def test_a_method_that_was_set_on_the_object_is_not_the_frameworks(
    framework: ModuleType, method: str, grade: str
) -> None:
    trainer = framework.Trainer()
    setattr(trainer, method, lambda: "mine")
    found = evidence_here(CODE, trainer)
    assert (found.grade, len((*found.control, *found.loss))) == (grade, 1)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_method_that_was_replaced_in_its_class_is_not_the_frameworks(framework: ModuleType, hidden: bool) -> None:
    native = framework.Trainer.loss

    def seven(self: Any) -> Any:
        return 7 * native(self)

    framework.Trainer.loss = functools.wraps(native)(seven) if hidden else seven  # type: ignore[attr-defined]
    found = evidence_here(CODE, framework.Trainer())
    assert found.grade == "measured"
    assert "(replaced by " in found.loss[0]


def test_a_method_that_this_release_has_not_is_not_the_frameworks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known release lacks it, and its class was given one: the training loop would call that."""
    text = TEXT.replace("    def step", "    def other")
    made(tmp_path, text)
    known = recorded(tmp_path / "known", v1=("tested", text))
    monkeypatch.setattr(proven, "records", lambda home: known)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(f"{NAME}.train")
        assert evidence_here(CODE, module.Trainer()).grade == "proven"
        module.Trainer.step = lambda self: None
        found = evidence_here(CODE, module.Trainer())
        assert found.grade == "refused"
        assert any("Trainer.step (added by " in name for name in found.control)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


def test_a_function_that_was_replaced_in_its_module_is_not_the_frameworks(framework: ModuleType) -> None:
    framework.help = lambda: 2  # type: ignore[attr-defined]
    assert evidence_here(CODE, framework.Trainer()).grade == "refused"


def test_our_own_patches_are_looked_through(framework: ModuleType) -> None:
    from batchbridge.kit.patches import rebound

    trainer, native = framework.Trainer(), framework.Trainer.step
    scope = {"__name__": "batchbridge_toy.enforce", "native": native}
    exec("def step(self):\n    return native(self)\n", scope)
    trainer.step = scope["step"]
    framework.Trainer.step = functools.wraps(native)(scope["step"])  # type: ignore[arg-type]  # as `batchbridge run`
    assert evidence_here(CODE, trainer).grade == "proven"
    assert rebound(native).__name__ == "step"


@pytest.mark.parametrize("wraps", ["    @functools.wraps(function)\n", ""])
def test_decorators_of_the_framework_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wraps: str
) -> None:
    decorator = (
        f"def timed(function):\n{wraps}    def inner(*a, **k):\n"
        "        return function(*a, **k)\n    return inner\n\n\nclass Trainer"
    )
    text = TEXT.replace("class Trainer", decorator).replace("    def step", "    @timed\n    def step")
    made(tmp_path, text)
    known = recorded(tmp_path / "known", v1=("tested", text))
    monkeypatch.setattr(proven, "records", lambda home: known)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(f"{NAME}.train")
        assert evidence_here(CODE, module.Trainer()).grade == "proven"
    finally:
        for name in (NAME, f"{NAME}.train"):
            sys.modules.pop(name, None)


def test_a_package_of_another_project_is_not_there(framework: ModuleType) -> None:
    code = Code("toy", "nowhere", (replace(PACKAGE, marker="theirs.py"),))
    assert evidence_here(code).grade == "refused"


# ---- the tables


@pytest.mark.parametrize("framework_name", ["trl", "verl", "openrlhf", "easyr1", "open_instruct"])
def test_every_function_of_a_table_is_recorded_in_a_tested_release(framework_name: str) -> None:
    code: Code = importlib.import_module(f"batchbridge_{framework_name}.proven").CODE
    known = proven.records(code.home)
    for package in (*code.packages, *code.parts):
        record, keys = known[package.record], fingerprints.of_package(package, None)
        assert set(record.functions) == set(keys)
        for key in keys:
            recorded = {label for digest, labels in record.functions[key].items() if digest for label in labels}
            assert recorded, f"{package.record} {key} is in no recorded release"
            everywhere = [label for labels in record.functions[key].values() for label in labels]
            assert sorted(everywhere) == sorted(record.labels), f"{key} has not one digest in each release"
