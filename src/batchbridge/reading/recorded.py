"""Facts that the record of a run says beside its settings: the version and the prompts that it was trained with.

Its own file: a reading imports it only for a record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from batchbridge.contract.reading import Context, RunRecord
from batchbridge.meaning.findings import Finding, Fix

if TYPE_CHECKING:
    from batchbridge.contract.adapter import Adapter


def recorded(record: RunRecord, adapter: Adapter, said: Context) -> tuple[Context, list[Finding]]:
    """The context of a run, with what its record says where nobody says it otherwise; and notes on that."""
    told = f"; it says {', '.join(record.told)}" if record.told else ""
    notes = [_note("BB026", f"this is {record.kind}: nothing parses it again{told}")]
    name = adapter.distribution or adapter.framework
    if said.framework_version is None:
        version = record.versions.get(name)
        if version is not None:
            said = replace(said, framework_version=version[0])
            notes.append(
                _note("BB024", f"no version of {name} was named: {version[1]} says {version[0]}, which is taken")
            )
        else:
            text = f"the record does not say the version of {name}, and what is installed here need not be it"
            notes.append(_note("BB026", text, Fix("name it with --framework-version")))
    if said.dataset_size is None and record.dataset_size is not None:
        said = replace(said, dataset_size=record.dataset_size.value)
        notes.append(
            _note("BB026", f"the dataset has {record.dataset_size.value:,} prompts ({record.dataset_size.place})")
        )
    return said, notes


def _note(code: str, text: str, *fixes: Fix) -> Finding:
    return Finding(code, "note", "config", text, fixes=fixes)
