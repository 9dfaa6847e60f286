"""Quantities of the schema: unit, bounds and meaning of a field; and the words that several groups share. Below `spec`
and `critic`, of which one imports the other.

Its own file: every group of the schema imports it.
"""

from typing import Any, Literal

from batchbridge.frozen import dataclass

Aggregation = Literal[
    "token_mean", "sequence_mean", "sequence_sum", "sequence_sum_over_constant", "token_sum", "prompt_mean"
]
DenominatorScope = Literal["optimizer_step", "rollout", "rank", "micro_batch"]


@dataclass(frozen=True)
class Quantity:
    """Unit, bounds and meaning of a field; also what the field looks like in the JSON Schema."""

    unit: str
    meaning: str
    minimum: float | None = None
    maximum: float | None = None

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """The JSON Schema of the field, which pydantic asks for; the core itself never imports pydantic."""
        schema: dict[str, Any] = handler(core_schema)
        schema["description"] = f"{self.meaning} Unit: {self.unit}."
        schema["x-unit"] = self.unit
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.maximum is not None:
            schema["maximum"] = self.maximum
        return schema
