"""Every field of the schema: its default, and a few other values of its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from batchbridge.meaning.spec import LossTerm, Spec


def _alternatives(hint: Any) -> list[Any]:
    """A few values of a field's type."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    options = [inner] if get_origin(inner) is Literal or not get_args(inner) else list(get_args(inner))
    return [value for option in options for value in (get_args(option) or _SAMPLES[option])]


_SAMPLES: Mapping[Any, Sequence[Any]] = {
    int: (1, 2, 3, 48),
    float: (0.0, 0.5, 3.0),
    str: ("linear", "none of these"),
    bool: (False, True),
    type(None): (None,),
}


def _all_changes() -> Iterator[tuple[str, Any]]:
    for group in fields(Spec):
        group_type = get_type_hints(Spec)[group.name]
        for name, hint in get_type_hints(group_type, include_extras=True).items():
            if get_origin(hint) is Annotated:
                yield from ((f"{group.name}.{name}", value) for value in _alternatives(hint))
            else:  # a term of the loss
                for inner, inner_hint in get_type_hints(LossTerm, include_extras=True).items():
                    base = {"aggregation": "token_mean"}
                    for value in _alternatives(inner_hint):
                        yield f"{group.name}.{name}", LossTerm(**{**base, inner: value})


CHANGES = list(_all_changes())


def _all_defaults() -> Iterator[tuple[str, Any]]:
    """(path, default) of every field that has one, those of all terms of the loss included."""
    for group in fields(Spec):
        group_type = get_type_hints(Spec)[group.name]
        for name in (f.name for f in fields(group_type)):
            if group.name == "loss":
                yield from ((f"loss.{name}.{f.name}", f.default) for f in fields(LossTerm) if f.default is not MISSING)
        yield from ((f"{group.name}.{f.name}", f.default) for f in fields(group_type) if f.default is not MISSING)


DEFAULTS = dict(_all_defaults())


def _all_paths() -> Iterator[str]:
    for group in fields(Spec):
        for name, hint in get_type_hints(get_type_hints(Spec)[group.name], include_extras=True).items():
            yield f"{group.name}.{name}"
            if get_origin(hint) is not Annotated:
                yield from (f"{group.name}.{name}.{inner.name}" for inner in fields(LossTerm))


PATHS = set(_all_paths())


REFUSABLE = PATHS | {"loss.kl", "loss.entropy"}
"""Fields of a refusal: a whole term of the loss is one, too."""
