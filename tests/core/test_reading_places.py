"""Where settings and canonical fields come from: what `Reading.where` and `Provenance.of` say of a place."""

from __future__ import annotations

import pytest

from batchbridge.contract.reading import Provenance, Reading
from batchbridge.meaning.findings import Where


def test_a_given_key_has_its_place_and_any_other_its_default() -> None:
    place = Where("prompts", 4, "run.yaml", 3)
    reading = Reading(
        framework="toy", framework_version="1.0", native={"prompts": 4, "samples": 2}, given={"prompts": place}
    )
    assert reading.where("prompts", "samples") == (place, Where("samples", 2))


def test_a_reading_of_nothing_says_no_more_than_its_framework() -> None:
    reading = Reading(framework="toy", framework_version=None)
    assert (reading.spec, reading.behaviour, dict(reading.provenance), reading.findings) == (None, None, {}, ())


@pytest.mark.parametrize(
    ("place", "said", "expected"),
    [
        (None, None, ("default", "default of toy 1.0, halved", None, None)),
        (Where("prompts", 8, "run.yaml", 3), None, ("file", "run.yaml:3, halved", "run.yaml", 3)),
        (Where("prompts", 8, "run.yaml"), None, ("file", "run.yaml, halved", "run.yaml", None)),
        (Where("prompts", 8), None, ("argument", "prompts=8, halved", None, None)),
        (Where("prompts", 8), "--prompts 8", ("argument", "--prompts 8, halved", None, None)),
    ],
    ids=["default", "line of a file", "file", "argument", "argument in its own form"],
)
def test_a_provenance_says_which_place_its_key_has(
    place: Where | None, said: str | None, expected: tuple[str, str, str | None, int | None]
) -> None:
    origin = Provenance.of("prompts", 8, place, default="default of toy 1.0", said=said, note=", halved")
    assert (origin.key, origin.value) == ("prompts", 8)
    assert (origin.origin, origin.detail, origin.file, origin.line) == expected
