"""The scripted agent loop as tests need it: late, failing, watched, and with images.

`BATCHBRIDGE_JITTER`: seconds, up to which each completion waits, by its own random number: arrival out of order.
`BATCHBRIDGE_FAIL`: `prompt/sample` whose loop raises. `BATCHBRIDGE_SEEDS`: a file that gets a line `prompt sample seed`
per completion. Where verl found a processor, prompts are those of `batchbridge_on_cpu.seeing`, each with its images.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.verl.scripted import GREEDY
from batchbridge_verl.on_cpu.agent import ScriptedAgent


class WatchedScriptedAgent(ScriptedAgent):
    """Completions, loss masks and rewards as a pure function of the prompt's index and the sample's number."""

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
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
        return self.played(prompt, sample, columns)

    def asked(self, script: ScriptedRollouts, prompt: int) -> tuple[list[int], dict[str, Any]]:
        if self.processor is None:
            return super().asked(script, prompt)
        from batchbridge_on_cpu import seeing

        images = {"multi_modal_data": {"images": seeing.shown_with(prompt)}}
        return seeing.tokenize(script.prompt(prompt)), images
