"""Kinds of values as OmegaConf and Hydra hand them on; see `batchbridge.kit.typed_values`."""

from __future__ import annotations

import functools

from batchbridge.kit.kinds import Kind
from batchbridge.kit.typed_values import convert


def _kind(name: str) -> Kind:
    return Kind(name, name, functools.partial(convert, name))


INT, FLOAT, BOOL, TEXT, LIST, ANY = (_kind(name) for name in ("int", "float", "bool", "str", "list", "any"))
OPTIONAL_INT, OPTIONAL_FLOAT, OPTIONAL_BOOL = (_kind(name) for name in ("int?", "float?", "bool?"))
OPTIONAL_TEXT, OPTIONAL_LIST = _kind("str?"), _kind("list?")
"""Where null is legal, too."""
