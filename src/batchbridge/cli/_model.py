"""`--parameters` and `--model-config`: a model's number of parameters, and the words of its vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

import click

from batchbridge.cli._output import wrong

_COUNT = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?([KMBT]?)", re.IGNORECASE)
_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}
_LARGEST = 10**15


def model_of(parameters: str | None, config: str | None) -> tuple[int, int | None]:
    """(parameters, words of the vocabulary where they are known). Raises `click.UsageError`."""
    if parameters is not None and config is not None:
        vocabulary = _config(config)[1]
        return _count(parameters), vocabulary
    if config is not None:
        found, vocabulary = _config(config, counted=True)
        return found, vocabulary
    assert parameters is not None
    return _count(parameters), None


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is not None:
        whole, part, unit = match[1], match[2] or "", _POWERS[match[3].upper()]
        count = int(whole + part) * int(f"1{'0' * (unit - len(part))}")
        if len(part) <= unit and 0 < count <= _LARGEST:
            return count
    raise click.UsageError(
        f"--parameters {text:.40}: expected a number of parameters, such as 1.5B, 494M or 1543714304"
    )


def _config(file: str, counted: bool = False) -> tuple[int, int]:
    """(parameters, words of the vocabulary) of a config.json; parameters only where they are `counted`, else 0."""
    from batchbridge.kit import model_size
    from batchbridge.reading.files import read_text
    from batchbridge.reading.yaml_json import Refused, parse_json

    try:
        values = parse_json(read_text(Path(file), file), file).value
        if not isinstance(values, dict):
            wrong(f"--model-config {file}: expected a mapping, as config.json has it")
        return model_size.parameters(values) if counted else 0, model_size.vocabulary(values)
    except Refused as refused:
        wrong(f"--model-config {file}: {refused.finding.message}")
    except ValueError as error:
        wrong(f"--model-config {file}: {error}")
