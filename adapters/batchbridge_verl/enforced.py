"""Which canonical fields a wrapped run of verl brings about, whatever its configuration says."""

from __future__ import annotations

from batchbridge.kit.enforced_fields import PLANNED_FIELDS, kept


def enforces(path: str, value: object) -> bool:
    """See `Adapter.enforces`."""
    return kept(PLANNED_FIELDS, path, value)
