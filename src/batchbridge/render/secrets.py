"""Values that nobody should find in a log: keys of services, tokens and passwords that stand in a configuration.

A text masks them by the setting's name, in every `key = value`; JSON by the member's name, or by the `key` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAMED = re.compile(r"(?i)(^|[._-])(use_wandb|key|token|secret|password|passwd|credentials?)$")
"""Ends of the names of settings that hold such values."""
_RUN = r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12}"
LONG = re.compile(rf"(?=[_\-+/=.A-Za-z0-9]*?{_RUN})[A-Za-z0-9_\-+/=.]{{16,}}")
"""The form of such a value, which has twelve letters and digits without a word's end among them: names of columns
(`prompt_key = problem_statement_v2_long`) and numbers (`max_token = 16384`) are none."""
MASKED = "(hidden)"
_SAID = re.compile(
    r"(?i)(?P<said>(?:^|[\s'\"(,+~-])[\w.-]*(?:use_wandb|key|token|secret|password|passwd|credentials?)['\"]?"
    r"(?: = |=|: ))"
    rf"(?P<value>['\"]?{LONG.pattern})"
)


def without_secrets(text: str) -> str:
    """A text with such values masked where their settings' names stand before them."""
    return _SAID.sub(rf"\g<said>{MASKED}", text)


def masked(value: Any, name: str = "") -> Any:
    """A value of JSON types with such values masked. name: of the member that holds it."""
    if isinstance(value, Mapping):
        own = next((str(value[beside]) for beside in ("key", "field") if isinstance(value.get(beside), str)), name)
        return {key: masked(one, own if key in _OF_A_KEY else str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, name) for one in value]
    if not isinstance(value, str):
        return value
    return MASKED if NAMED.search(name) and LONG.fullmatch(value) else without_secrets(value)


_OF_A_KEY = ("value", "before", "after", "a", "b", "old", "new")
"""Members that hold the value of the setting that `key` beside them names."""
