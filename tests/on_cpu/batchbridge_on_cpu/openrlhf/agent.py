"""An agent as OpenRLHF loads it from a file (`train.agent_func_path`): where the policy has not ended its turn, the
environment says some words and lets it go on; a reward for each turn. Pure functions of what the policy wrote."""

from __future__ import annotations

from typing import Any

FEEDBACK, FAREWELL = "w7 w8 w9", "w5"
"""What the environment says between two turns, and behind the last one."""
CONTINUED, ENDED = 0.5, 7
"""Reward of a turn that is not the last one, whose reward is the number of words that the policy wrote modulo this."""

try:
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
except ImportError:  # of its words alone
    pass
else:
    import torch

    class AgentInstance(AgentInstanceBase):  # type: ignore[misc]  # OpenRLHF has no types
        """The environment of one completion."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.written = 0

        async def step(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
            """The answer to one turn of the policy's."""
            words = states["action_text"].split()
            self.written += len(words)
            done = words[-1] == "<eos>"
            reward = torch.tensor(float(self.written % ENDED) if done else CONTINUED)
            return {"rewards": reward, "environment_feedback": FAREWELL if done else FEEDBACK, "done": done}

    class AgentExecutor(MultiTurnAgentExecutor):  # type: ignore[misc]  # as above
        """What OpenRLHF looks for in the file."""

        def __init__(self) -> None:
            super().__init__(AgentInstance)
