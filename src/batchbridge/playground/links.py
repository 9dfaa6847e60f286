"""Links that hold the state of the page: what stands behind the `#` never reaches a server.

Its own file: notebooks make links without what answers questions.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

LONGEST = 8_000
"""Characters of a link that every browser and every chat takes."""


def state_in_link(state: Mapping[str, Any]) -> str:
    """`#s=...`: the state, packed, as the page itself makes it."""
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(json.dumps(state).encode()) + packer.flush()
    return "#s=" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def state_of_link(link: str) -> dict[str, Any]:
    """The state behind the `#s=` of a link. Raises `ValueError`."""
    _, found, packed = link.partition("#s=")
    if not found:
        raise ValueError("the link has no state of the playground")
    try:
        state = json.loads(zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), wbits=-15))
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the link's state is not whole: {error}") from None
    if not isinstance(state, dict):
        raise ValueError("the link's state is not a mapping")
    return state
