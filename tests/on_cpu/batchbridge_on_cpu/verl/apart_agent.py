"""The agent loop of `apart`, apart from its engine: what a completion begins with is noted."""

from __future__ import annotations

import os
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from batchbridge_on_cpu.verl.agent import WatchedScriptedAgent
from batchbridge_on_cpu.verl.apart import note, seen


class Agent(WatchedScriptedAgent):
    """Notes whose weights the engine holds, and says of itself what it is told to."""

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
        if sampling_params.get("temperature"):  # else it is evaluated
            held = (seen() / "held").read_text(encoding="utf-8")
            note("made", columns["extra_info"]["index"], columns["session_id"], held)
        output = await super().run(sampling_params, **columns)
        if stamp := os.environ.get("BATCHBRIDGE_STAMP"):
            output.extra_fields |= dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), int(stamp))
        return output
