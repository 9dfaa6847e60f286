"""The settings of a loop as an object that the written program builds."""

from __future__ import annotations

from typing import Any

from batchbridge import Spec, read

VERSION = "0.38.0"
"""The SDK's version that loops are written for."""


class TinkerRun:
    """The run of a loop: its settings by name, read as `batchbridge check` reads them.

    spec: what they mean. base_model, lora_rank: for the service. Raises `ValueError` with every finding where they are
    not a run.
    """

    def __init__(self, *, base_model: str, lora_rank: int, **settings: Any) -> None:
        values = {"base_model": base_model, "lora_rank": lora_rank, **settings}
        reading = read(values, framework="tinker", version=VERSION, world_size=1)
        if reading.verdict != "valid" or reading.spec is None:
            raise ValueError("; ".join(str(finding.message) for finding in reading.findings))
        self.base_model, self.lora_rank = base_model, lora_rank
        self.spec: Spec = reading.spec
