"""Keys fit the patterns of `Adapter.outside` as `fnmatch` says."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import example, given
from hypothesis import strategies as st

from batchbridge.contract.adapter import _fitting

SHORT = st.text("ab.*?[]!", max_size=6)


@given(SHORT, st.text("ab.*?[]!", max_size=8))
@example("a*a", "a")
@example("*b*", "abba")
@example("a*b*", "ab.")
def test_a_key_fits_a_pattern_as_fnmatch_says(pattern: str, key: str) -> None:
    assert _fitting(pattern)(key) == fnmatchcase(key, pattern)
