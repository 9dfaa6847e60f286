"""The agent loop that plays `batchbridge.testing.tiny.ScriptedRollouts`, as `agent_loop_config_path` names it. Rewards:
see `ScriptedRollouts.of_environment`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from batchbridge.testing.tiny import ScriptedRollouts


class ScriptedAgent(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Completions, loss masks and rewards as a pure function of the prompt's index and the sample's number."""

    def __init__(self, *arguments: Any, hf_model_type: str | None = None, **options: Any) -> None:
        # What joins the tokens of several turns wants the line breaks of Qwen's tokenizers; there is one turn.
        super().__init__(*arguments, **options)

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
        # V0 numbers no samples when it evaluates.
        return self.played(int(columns["extra_info"]["index"]), int(columns.get("session_id", 0)), columns)

    def asked(self, script: ScriptedRollouts, prompt: int) -> tuple[list[int], dict[str, Any]]:
        """The prompt's token ids, and what else the output says of it."""
        return self.tokenizer(script.prompt(prompt))["input_ids"], {}

    def played(self, prompt: int, sample: int, columns: Mapping[str, Any]) -> AgentLoopOutput:
        """The script's completion."""
        script = ScriptedRollouts.of_environment()
        version = int(columns.get("global_steps", 1)) - 1
        tokens = script.completion(prompt, sample)
        prompt_ids, more = self.asked(script, prompt)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=tokens,
            response_mask=script.loss_mask(prompt, sample),
            response_logprobs=[-4.0] * len(tokens),
            reward_score=script.reward(prompt, sample),
            num_turns=2,
            metrics={"generate_sequences": 0.0, "tool_calls": 0.0, "num_preempted": -1},
            **more,
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {},
                **dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), version),
            },
        )
