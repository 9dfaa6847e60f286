"""Every field of the schema: its default, and a few other values of its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from batchbridge.meaning.critic import Critic
from batchbridge.meaning.spec import OPTIONAL, LossTerm, Spec, default_of, every_field


def _alternatives(hint: Any) -> list[Any]:
    """A few values of a field's type."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    options = [inner] if get_origin(inner) in (Literal, tuple) or not get_args(inner) else list(get_args(inner))
    return [value for option in options for value in (_SAMPLES.get(option) or get_args(option))]


OPEN_TERM = "advantage: a term of the contract's own"
"""An open term that no framework has."""
_SAMPLES: Mapping[Any, Sequence[Any]] = {
    int: (1, 2, 3, 48),
    float: (0.0, 0.5, 3.0),
    str: ("linear", "none of these"),
    bool: (False, True),
    type(None): (None,),
    tuple[str, ...]: ((OPEN_TERM,),),
}


def _all_changes() -> Iterator[tuple[str, Any]]:
    for group, group_hint in get_type_hints(Spec, include_extras=True).items():
        if get_origin(group_hint) is Annotated:
            yield from ((group, value) for value in _alternatives(group_hint))
            continue
        if group in OPTIONAL:
            yield group, Critic(completions_per_step=48, aggregation="token_mean")
            continue
        for name, hint in get_type_hints(group_hint, include_extras=True).items():
            if get_origin(hint) is Annotated:
                yield from ((f"{group}.{name}", value) for value in _alternatives(hint))
            else:  # a term of the loss
                for inner, inner_hint in get_type_hints(LossTerm, include_extras=True).items():
                    base = {"aggregation": "token_mean"}
                    for value in _alternatives(inner_hint):
                        yield f"{group}.{name}", LossTerm(**{**base, inner: value})


CHANGES = list(_all_changes())
PATHS = {path for path, _ in every_field()} | {"loss.policy", "loss.kl", "loss.entropy"}
"""Every field; a whole term of the loss is one, too."""
DEFAULTS = {path: default_of(path) for path, _ in every_field() if default_of(path) is not MISSING}
"""Path to default of every field that has one, those of all terms of the loss included."""
