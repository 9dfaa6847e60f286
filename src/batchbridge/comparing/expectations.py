"""The expectations that a project has of its runs (`[tool.batchbridge.expect]`), held against a reading.

An expectation names a canonical field, or a number that follows from the fields, and its value; or, as `equivalent_to`,
a configuration that should mean the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from batchbridge.contract.reading import Reading
from batchbridge.meaning.derived import UNITS, derive
from batchbridge.meaning.findings import EQUIVALENT_TO, Finding, Where
from batchbridge.meaning.spec import every_field

CODE = "BB045"
"""The code of a run that departs from what is expected of it."""
MOST_NAMED = 5
"""Differences from another configuration that a message names."""


@cache
def expectable() -> Mapping[str, str | None]:
    """The names that can be expected: each canonical field by its dotted path, with that path; those of the policy by
    their last word, too, where one field alone has it; each derived number with None."""
    paths = [path for path, _ in every_field()]
    words = [(path.rpartition(".")[2], path) for path in paths if not path.startswith("critic.")]
    times = Counter(word for word, _ in words)
    short = {word: path for word, path in words if times[word] == 1}
    return {**dict.fromkeys(UNITS), **short, **{path: path for path in paths}}


def departures(reading: Reading, expected: Mapping[str, Any]) -> tuple[Finding, ...]:
    """A finding for each expectation that the run of a reading departs from, or leaves open; none where the reading has
    no meaning, which its own findings say.

    Raises:
        ValueError: A name that nothing has; its message says the nearest one.
    """
    for name in expected:
        if name != EQUIVALENT_TO and name not in expectable():
            raise ValueError(no_such(name))
    if reading.spec is None:
        return ()
    return tuple(_departing(reading, expected))


def no_such(name: str) -> str:
    """The sentence that nothing of a run has this name, with the nearest one."""
    import difflib  # most projects have no wrong name

    near = difflib.get_close_matches(name, [EQUIVALENT_TO, *expectable()], 1)
    hint = f"did you mean {near[0]}?" if near else "`batchbridge explain FILE -v` shows the names"
    return f"a run has no {name}; {hint}"


def _departing(reading: Reading, expected: Mapping[str, Any]) -> Iterator[Finding]:
    assert reading.spec is not None
    values = {**reading.spec.values, **derive(reading.spec, reading.dataset_size)}
    for name, wanted in expected.items():
        if name == EQUIVALENT_TO:
            yield from _other_meaning(reading, str(wanted))
            continue
        path = expectable()[name]
        have = values.get(path or name)
        if have is None and wanted is not None:
            message = f"{name} is open, and the project expects {wanted}"
            yield _finding(message, _places(reading, path), undecided=True)
        elif not _same(have, wanted):
            yield _finding(f"{name} is {have}, and the project expects {wanted}", _places(reading, path))


def _other_meaning(reading: Reading, file: str) -> Iterator[Finding]:
    """The finding that another configuration means something else."""
    from batchbridge.comparing.diff_sources import diff

    world = reading.spec.topology.world_size if reading.spec is not None else None
    compared = diff(file, reading, world_size=world, dataset_size=reading.dataset_size)
    if compared.verdict == "equivalent":
        return
    if compared.a.verdict != "valid":
        message = f"the project expects the meaning of {file}, which is {compared.a.verdict} itself"
        yield _finding(message, (), undecided=True)
    elif compared.verdict == "not equivalent":
        told = [f"{one.subject} is {one.b}, there {one.a}" for one in compared.differences]
        more = len(told) - MOST_NAMED
        listed = "; ".join([*told[:MOST_NAMED], *([f"and {more} more (batchbridge diff)"] if more > 0 else [])])
        places = [place for one in compared.differences for place in _places(reading, one.field)]
        yield _finding(f"the project expects the meaning of {file}, and this differs: {listed}", tuple(places))
    elif compared.verdict == "undecided":
        told = [one.subject for one in compared.cannot_tell]
        yield _finding(f"the project expects the meaning of {file}; open: {', '.join(told)}", (), undecided=True)


def _finding(message: str, where: tuple[Where, ...], *, undecided: bool = False) -> Finding:
    once = {(place.key, place.file, place.line): place for place in where}
    return Finding(CODE, "error", "never", message, where=tuple(once.values()), undecided=undecided)


def _places(reading: Reading, path: str | None) -> tuple[Where, ...]:
    """The places of the keys that a canonical field comes from."""
    origin = reading.provenance.get(path or "")
    return () if origin is None else tuple(reading.where(*origin.keys))


def _same(have: Any, wanted: Any) -> bool:
    """Whether a value is the expected one; numbers up to rounding."""
    if isinstance(have, bool) or isinstance(wanted, bool):
        return have is wanted
    if isinstance(have, int | float) and isinstance(wanted, int | float):
        return math.isclose(have, wanted, rel_tol=1e-9)
    if isinstance(have, list | tuple) and isinstance(wanted, list | tuple):
        return len(have) == len(wanted) and all(map(_same, have, wanted))
    return bool(have == wanted)
