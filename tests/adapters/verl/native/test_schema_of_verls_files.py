"""The schema for editors takes the configurations that the installed verl generated itself, one for each engine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import jsonschema
import pytest

from batchbridge.reading.files import load_source
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.installed import package_folder

VERSION = importlib.metadata.version("verl")
FOLDER = package_folder(VERSION) or Path()
FILES = sorted((FOLDER / "trainer" / "config").glob("_generated_ppo*_trainer.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_generated_configuration_fits_and_a_strange_key_in_it_does_not(file: Path) -> None:
    schema = jsonschema.Draft7Validator(VerlAdapter().file_schema(VERSION))
    values = dict(load_source(file).values)
    assert [f"{list(error.absolute_path)}: {error.message:.200}" for error in schema.iter_errors(values)] == []
    assert not schema.is_valid({**values, "data": {**values["data"], "train_bach_size": 8}})


def test_there_is_one_for_each_engine() -> None:
    assert len(FILES) == 4
