"""Scripted generation engines as tests need them: late, watched, short of a completion.

`BATCHBRIDGE_JITTER`: seconds, up to which each prompt's answer waits, by its own random number keyed by
`BATCHBRIDGE_JITTER_SEED`: arrival out of order. `BATCHBRIDGE_SHORT`: the prompt (its number) of which one completion
does not come. `BATCHBRIDGE_SEEDS`: a file that gets a line `prompt sample seed` per completion. `BATCHBRIDGE_SCORES`:
scores are the rewards, for a filter; else there are none.
`BATCHBRIDGE_KILL`: `rank/step`: that training process kills itself after it has trained that optimizer step.
`BATCHBRIDGE_GROUP`: completions of a prompt, where an agent (`train.agent_func_path`) makes them; see `conversations`.
`BATCHBRIDGE_CLIPPED`: a file that gets a line of JSON per row of the policy loss, see `_clipping`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.hookspecs import hookimpl
from batchbridge_openrlhf.on_cpu import engines
from batchbridge_openrlhf.on_cpu.engines import ScriptedEngine, ScriptedExecutor


class WatchedExecutor(ScriptedExecutor):
    """Gives one completion, and writes down with which seed it was asked for."""

    async def execute(
        self, prompt: str, label: str, sampling_params: Any, hf_tokenizer: Any, sample: int
    ) -> dict[str, Any]:
        from batchbridge.testing.tiny import ScriptedRollouts

        if file := os.environ.get("BATCHBRIDGE_SEEDS"):
            index = ScriptedRollouts().prompt_index(prompt)
            with Path(file).open("a", encoding="utf-8") as seeds:  # one short write: processes do not mix
                seeds.write(f"{index} {sample} {sampling_params.seed}\n")
        answer = await super().execute(prompt, label, sampling_params, hf_tokenizer, sample)
        return {**answer, "scores": answer["reward"] if os.environ.get("BATCHBRIDGE_SCORES") else None}


class LateEngine(ScriptedEngine):
    """Answers every call that OpenRLHF makes of an engine, later than it was asked; takes no weights."""

    def made_executor(self) -> ScriptedExecutor:
        return WatchedExecutor()

    async def generate_responses(
        self, prompt: str, label: str, sampling_params: Any, max_length: int, hf_tokenizer: Any, **options: Any
    ) -> list[dict[str, Any]]:
        from batchbridge.testing.tiny import ScriptedRollouts

        index = ScriptedRollouts().prompt_index(prompt)
        jitter = float(os.environ.get("BATCHBRIDGE_JITTER", "0"))
        seed = f"{os.environ.get('BATCHBRIDGE_JITTER_SEED', '')}/{index}"
        await asyncio.sleep(jitter * random.Random(seed).random())
        options["num_samples"] -= os.environ.get("BATCHBRIDGE_SHORT") == str(index)
        return await super().generate_responses(prompt, label, sampling_params, max_length, hf_tokenizer, **options)


class Killer:
    """Ends this process after an optimizer step; see the module."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)


def _engine_for(options: Mapping[str, Any]) -> type:
    agent = options.get("agent_func_path")
    if not agent:
        return LateEngine
    from batchbridge_on_cpu.openrlhf.conversations import engine_of

    return engine_of(agent, int(os.environ["BATCHBRIDGE_GROUP"]))


def _clipping(file: Path) -> None:
    """Writes down, of every row that OpenRLHF's policy loss is given: `old`, its old log-probabilities, and `clipped`,
    whether PPO's clip leaves none of its tokens a gradient. Hooks of modules: no code of OpenRLHF's is another one.

    A loss is heard from its second call on: its first is of a first pass, in which every ratio is 1.
    """
    import torch

    def heard(loss: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        new, old, advantages, mask = (tensor.detach().float() for tensor in (*given, named["action_mask"]))
        ratio = (new - old).exp()
        off = ((ratio > 1 + loss.clip_eps_high) & (advantages > 0)) | (
            (ratio < 1 - loss.clip_eps_low) & (advantages < 0)
        )
        whole = (off | (mask == 0)).all(1) & mask.any(1)  # fillers have no token
        rows = zip(old.tolist(), whole.tolist(), strict=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps({"old": row, "clipped": clipped}) + "\n" for row, clipped in rows)

    seen = set()

    def found(module: Any, given: tuple[Any, ...]) -> None:
        if type(module).__name__ == "PolicyLoss" and id(module) not in seen:
            seen.add(id(module))
            module.register_forward_pre_hook(heard, with_kwargs=True)

    torch.nn.modules.module.register_module_forward_pre_hook(found)


def _worker(module: Any) -> None:
    if file := os.environ.get("BATCHBRIDGE_CLIPPED"):
        _clipping(Path(file))
    if os.environ.get("BATCHBRIDGE_KILL"):
        from batchbridge.contract import plugins

        plugins.manager().register(Killer(), "batchbridge_openrlhf_killer")


HOOKS: Mapping[str, Callable[[Any], None]] = {
    **engines.HOOKS,
    "openrlhf.trainer.ray": functools.partial(engines.after_engines, engine_for=_engine_for),
    "openrlhf.trainer.ray.ppo_actor": _worker,
}
"""What is called after these modules' imports."""
