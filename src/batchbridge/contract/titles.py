"""The titles of rules: what is wrong in a few words, and why it matters in one sentence.

Data: `titles.json` beside `batchbridge.rules` has the codes of every framework (BB101), that of an adapter its own. Its
own file: an adapter, a rule's page and the texts about findings all need it.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

HOUSE = "batchbridge.rules"


class RuleTitle(NamedTuple):
    """A rule's title, at most 60 characters that name what is wrong, and why it matters, in one sentence."""

    title: str
    why: str


@cache
def titles_in(package: str) -> Mapping[str, RuleTitle]:
    """The titles in a package's `titles.json`, `{"BB-NAME-010": ["title", "Why."]}`, by code; none without the file."""
    try:
        found = pkgutil.get_data(package, "titles.json") if package else None
    except OSError:
        return {}
    return {} if found is None else {code: RuleTitle(*said) for code, said in json.loads(found).items()}
