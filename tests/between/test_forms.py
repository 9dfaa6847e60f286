"""Every form in which a configuration is written means what its values mean."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from registered import adapters
from toys import plain_spec, reading_of

from batchbridge.cli.main import main
from batchbridge.comparing.convert import Conversion, convert_to
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.reading import files
from batchbridge.reading.read import read_source

pytestmark = pytest.mark.usefixtures("own_adapters")
FORMS = {
    "trl": ("yaml", "python"),
    "open_r1": ("yaml", "python"),
    "verl": ("hydra", "yaml"),
    "easyr1": ("arguments", "yaml"),
    "openrlhf": ("shell", "argv"),
    "open_instruct": ("argv", "shell"),
}
EACH = [(framework, form) for framework, forms in FORMS.items() for form in forms]
KL = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}


def written(framework: str, **changes: Any) -> Conversion:
    return convert_to(adapters()[framework], reading_of(plain_spec(**changes), dataset_size=160))


def read(found: Conversion, source: Source) -> Reading:
    context = Context(framework_version=found.framework_version, world_size=4, dataset_size=160)
    return read_source(source, adapters()[found.framework], context)


def test_every_form_is_tested() -> None:
    forms = {name: written(name).written for name in adapters()}
    assert {name: tuple(form.text) for name, form in forms.items() if form is not None} == FORMS


@pytest.mark.parametrize(("framework", "form"), EACH)
@pytest.mark.parametrize("changes", [{}, KL], ids=["plain", "KL in the loss"])
def test_a_form_means_what_the_account_says(framework: str, form: str, changes: dict[str, Any], tmp_path: Path) -> None:
    found = written(framework, **changes)
    assert found.written is not None, found.refused
    assert found.back is not None
    text = found.written.text[form]
    if form == "python":
        (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        source = Source(
            values={keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        )
    elif form == "argv":
        source = files.load_source([word for line in text.splitlines() for word in shlex.split(line)])
    else:
        path = tmp_path / ("run.yaml" if form == "yaml" else "run.sh")
        path.write_text(text, encoding="utf-8")
        source = files.load_source(path, framework=framework)
    back = read(found, source)
    assert back.verdict == "valid", back.findings
    assert back.spec == found.back.spec


@pytest.mark.parametrize(("framework", "form"), EACH)
def test_each_form_is_an_option_of_the_command(
    framework: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "a.yaml"
    recipe.write_text("num_generations: 8\nper_device_train_batch_size: 8\nbeta: 0.04\n", encoding="utf-8")
    source = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8", "--allow-lossy")
    assert main(("convert", str(recipe), *source, "--to", framework, "--format", form)) == 0
    shown = capsys.readouterr()
    assert f"to {framework}" in shown.err
    assert "learning_rate" in shown.out or "lr" in shown.out
    assert "Exact" not in shown.out


@pytest.mark.parametrize("suffix", sorted(files.SCRIPTS))
def test_a_file_named_as_a_script_becomes_one(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, script = tmp_path / "a.yaml", tmp_path / f"run{suffix}"
    recipe.write_text("num_generations: 8\nper_device_train_batch_size: 8\nbeta: 0.04\n", encoding="utf-8")
    source = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8", "--allow-lossy")
    to = ("convert", str(recipe), *source, "--to", "open_instruct")
    assert main((*to, "--format", "shell")) == 0
    shown = capsys.readouterr().out
    assert main((*to, "-o", str(script))) == 0
    assert script.read_text(encoding="utf-8").strip() == shown.strip()


@pytest.mark.parametrize("framework", FORMS)
def test_a_conversion_that_names_no_version_is_for_one_of_the_newest(framework: str) -> None:
    found = written(framework, **KL)
    assert found.written is not None, found.refused
    assert found.framework_version == found.written.framework_version


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.0.7", "is not known"), ("99", "is (newer than|not known)"), ("2025.11.4", "is (newer|not)")],
)
@pytest.mark.parametrize("framework", FORMS)
def test_a_version_that_nobody_knows_is_refused_by_name(framework: str, version: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(version)} {why}"):
        convert_to(adapters()[framework], reading_of(plain_spec()), version=version)
    recipe = tmp_path / "a.yaml"
    recipe.write_text("num_generations: 8\nper_device_train_batch_size: 8\n", encoding="utf-8")
    source = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8")
    assert main(("convert", str(recipe), *source, "--to", framework, "--to-version", version)) == 64
