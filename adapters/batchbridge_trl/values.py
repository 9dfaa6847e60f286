"""One native value at a time: is it of its key's kind, and what does TRL's parser make of it?

TrlParser gives YAML values to argparse as defaults, and argparse converts defaults that are strings with the field's
type (trl 1.16.0 TrlParser.set_defaults_with_config; see `batchbridge.kit.parser_kinds`). A `GRPOConfig(...)` call
converts nothing; there, integers in quotes are refused here, and numbers in quotes are taken where the key is a float,
because `1e-6` is what a YAML loader hands on.

Its own file: reading, writing and the file's schema use it.
"""

from __future__ import annotations

from typing import Any

from batchbridge.kit import LARGEST
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import WrongValue
from batchbridge.kit.parser_kinds import BOOL, any_case, passes_unchecked
from batchbridge.kit.parser_kinds import too_large as too_large
from batchbridge.kit.versions import holds
from batchbridge_trl.settings_transformers import COUNTED_TOKENS

_NULL, _TAKES_NULL = ("none", "null"), ">=1.6"
"""Texts for no value, where the type is not text. Source: trl 1.6.0 scripts/_hf_argparser.py _accept_none; 1.5.1 has
none, and none has them for flags."""
NULL_TEXT = f"^({'|'.join(map(any_case, _NULL))})$"
TOO_LARGE = WrongValue(
    f"an integer of at most {LARGEST:,} in size",
    "it is accepted, and fails in a tensor, a generator or the data loader, or is never reached",
)


def takes_null(row: Key, version: str) -> bool:
    """Whether the text `none` is null for TRL's parser."""
    return row.kind.name in ("int?", "float?", "dict?") and holds(_TAKES_NULL, version)


def convert(row: Key, value: Any, version: str, *, parsed: bool) -> Any:
    """`value` as TRL would hold it. `parsed`: it passes through TRL's parser (file or command line), which converts
    strings. Raises `WrongValue`."""
    if parsed and isinstance(value, str) and value.lower() in _NULL and takes_null(row, version):
        return None
    if isinstance(value, str) and not parsed and row.kind.name.rstrip("?") in ("int", "bool"):
        raise WrongValue(row.kind.expected, passes_unchecked(value))
    # The parser takes a field of text or flag for a flag.
    converted = (BOOL if parsed and row.kind is COUNTED_TOKENS else row.kind).convert(value)
    if too_large(converted):
        raise TOO_LARGE
    return converted
