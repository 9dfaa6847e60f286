"""Effects of NeMo-RL's settings that the schema has no field for; see `Adapter.decides`.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from collections.abc import Mapping

REWARDS = ("data.default.env_name", "data.train.env_name", "grpo.penalize_*", "grpo.invalid_tool_call_strategy")

OUTSIDE: Mapping[str, str] = {
    **dict.fromkeys(REWARDS, "the rewards"),
    "grpo.stop_at_validation_*": "the length of the run",
}
"""Pattern of settings to what they decide; the first that fits counts. Source: NeMo-RL 0.7.0 algorithms/grpo.py."""
