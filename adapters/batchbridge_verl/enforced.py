"""Which canonical fields a wrapped run of verl brings about, whatever its configuration says."""

from __future__ import annotations

from batchbridge.kit.enforced_fields import PLANNED_FIELDS, Promises

ENFORCED: Promises = PLANNED_FIELDS
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED`, `SETTABLE` and `REFUSALS` of
`runtime`. What is taken over only where the configuration says it too is not here: a batch-wide scale of advantages, a
KL penalty in another place, a group size of the V0 trainer."""
