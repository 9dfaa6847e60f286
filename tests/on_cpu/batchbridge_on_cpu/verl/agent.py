"""The agent loop that plays `batchbridge.testing.tiny.ScriptedRollouts`, as `agent_loop_config_path` names it.

`BATCHBRIDGE_JITTER`: seconds, up to which each completion waits, by its own random number: arrival out of order.
`BATCHBRIDGE_FAIL`: `prompt/sample` whose loop raises. `BATCHBRIDGE_SEEDS`: a file that gets a line `prompt sample seed`
per completion. Rewards: see `ScriptedRollouts.of_environment`. Where verl found a processor, prompts are those of
`batchbridge_on_cpu.seeing`, each with its images.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.verl.scripted import GREEDY


class ScriptedAgent(AgentLoopBase):  # type: ignore[misc]  # verl is untyped here
    """Completions, loss masks and rewards as a pure function of the prompt's index and the sample's number."""

    def __init__(self, *arguments: Any, hf_model_type: str | None = None, **options: Any) -> None:
        # What joins the tokens of several turns wants the line breaks of Qwen's tokenizers; there is one turn.
        super().__init__(*arguments, **options)

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
        script = ScriptedRollouts.of_environment()
        # V0 numbers no samples when it evaluates.
        prompt, sample = int(columns["extra_info"]["index"]), int(columns.get("session_id", 0))
        if sampling_params.get("temperature") == 0:
            sample = GREEDY
        if os.environ.get("BATCHBRIDGE_FAIL") == f"{prompt}/{sample}":
            raise RuntimeError("a scripted failure")
        jitter = float(os.environ.get("BATCHBRIDGE_JITTER", "0"))
        if jitter:
            seed = f"{os.environ.get('BATCHBRIDGE_JITTER_SEED', '')}/{prompt}/{sample}"
            await asyncio.sleep(jitter * random.Random(seed).random())
        if file := os.environ.get("BATCHBRIDGE_SEEDS"):
            with Path(file).open("a", encoding="utf-8") as seeds:  # one short write: processes do not mix
                seeds.write(f"{prompt} {sample} {sampling_params.get('seed')}\n")
        version = int(columns.get("global_steps", 1)) - 1
        tokens = script.completion(prompt, sample)
        prompt_ids, images = self.tokenizer(script.prompt(prompt))["input_ids"], {}
        if self.processor is not None:
            from batchbridge_on_cpu import seeing

            prompt_ids = seeing.tokenize(script.prompt(prompt))
            images = {"multi_modal_data": {"images": seeing.shown_with(prompt)}}
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=tokens,
            response_mask=script.loss_mask(prompt, sample),
            response_logprobs=[-4.0] * len(tokens),
            reward_score=script.reward(prompt, sample),
            num_turns=2,
            metrics={"generate_sequences": 0.0, "tool_calls": 0.0, "num_preempted": -1},
            **images,
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {},
                **dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), version),
            },
        )
