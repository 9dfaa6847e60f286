"""Scripted completions in place of vLLM's: a pure function of prompt and sample; see `batchbridge.testing.tiny`.

`BATCHBRIDGE_WEIGHTS`: folder where rank 0 leaves all weights as they are when vLLM gets them: first.pt, last.pt; and
of a model with adapters what EasyR1's own function gives vLLM: first.sent.pt, last.sent.pt.
`BATCHBRIDGE_SEEDS`: file where every completion that is asked for with a seed leaves a line: prompt, sample, seed.
"""

from __future__ import annotations

import os
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.tiny import FIRST_WORD, PAD, ScriptedRollouts


class ScriptedRollout:
    """In place of EasyR1's `vLLMRollout`."""

    def __init__(self, model_path: str, config: Any, tokenizer: Any, **options: Any) -> None:
        self._config, self._tokenizer, self._script = config, tokenizer, ScriptedRollouts()
        self.inference_engine = ScriptedEngine(self._script)

    def generate_sequences(self, prompts: Any) -> Any:
        """Prompt-major, as vLLM's. Source: EasyR1 workers/rollout/vllm_rollout_spmd.py."""
        from tensordict import TensorDict
        from verl.protocol import DataProto

        group = int(prompts.meta_info.get("n", self._config.n))
        columns = [prompts.batch[name].repeat_interleave(group, 0) for name in ("input_ids", "attention_mask")]
        positions = prompts.batch["position_ids"].repeat_interleave(group, 0)
        rows, width = len(columns[0]), self._config.response_length
        answers, attended, trained = (torch.zeros(rows, width, dtype=torch.long) for _ in range(3))
        answers += PAD
        texts = [
            self._tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
            for ids, mask in zip(prompts.batch["input_ids"], prompts.batch["attention_mask"], strict=True)
        ]
        asked = types.SimpleNamespace(n=group, seed=None)
        drawn = self.inference_engine.generate(prompts=texts, sampling_params=asked, use_tqdm=False)
        for row, tokens in enumerate(drawn):
            prompt, sample = self._script.prompt_index(texts[row // group]), row % group
            tokens = torch.tensor(tokens)
            answers[row, : len(tokens)] = tokens
            attended[row, : len(tokens)] = 1
            trained[row, : len(tokens)] = torch.tensor(self._script.loss_mask(prompt, sample))
        more = torch.arange(1, width + 1)
        batch = {
            "prompts": columns[0],
            "responses": answers,
            "input_ids": torch.cat([columns[0], answers], 1),
            "attention_mask": torch.cat([columns[1], attended], 1),
            "response_mask": trained,
            "position_ids": torch.cat([positions, positions[..., -1:] + more], -1),
        }
        shown = prompts.non_tensor_batch.get("multi_modal_data")
        images = {} if shown is None else {"multi_modal_data": shown.repeat(group)}
        return DataProto(TensorDict(batch, batch_size=rows), images, prompts.meta_info)


class ScriptedEngine:
    """In place of vLLM's `LLM`: answers by prompt and sample, whatever the seeds, which are kept for the test."""

    def __init__(self, script: ScriptedRollouts) -> None:
        self._script = script

    def generate(self, *, prompts: Sequence[str], sampling_params: Any, use_tqdm: bool) -> list[list[int]]:
        """Prompt-major: a prompt's group in one request, or each sample in its own."""
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        answers, seen, lines = [], Counter[int](), []
        for text, asked in zip(prompts, each, strict=True):
            prompt = self._script.prompt_index(text)
            for _ in range(asked.n):
                if asked.seed is not None:
                    lines.append(f"{prompt} {seen[prompt]} {asked.seed}\n")
                answers.append(list(self._script.completion(prompt, seen[prompt])))
                seen[prompt] += 1
        file = os.environ.get("BATCHBRIDGE_SEEDS")
        if file and lines:
            with Path(file).open("a", encoding="utf-8") as kept:
                kept.write("".join(lines))
        return answers


class Sharding:
    """In place of EasyR1's `FSDPVLLMShardingManager`: keeps the weights where the test asks for them."""

    freed_bytes = 0

    def __init__(self, module: Any, **options: Any) -> None:
        self._module = module

    def load_vllm_and_sync_weights(self) -> None:
        folder = os.environ.get("BATCHBRIDGE_WEIGHTS")
        if not folder:
            return
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        kept = {"sent.pt": adapters_for_vllm(self._module)}
        with FSDP.summon_full_params(self._module, writeback=False):
            kept["pt"] = {name: value.detach().clone() for name, value in self._module.named_parameters()}
        if os.environ.get("RANK", "0") == "0":
            Path(folder).mkdir(parents=True, exist_ok=True)
            for ending, weights in kept.items():
                for name in ("first", "last"):
                    file = Path(folder) / f"{name}.{ending}"
                    if weights and (name == "last" or not file.exists()):
                        torch.save(weights, file)

    def offload_vllm(self) -> None: ...

    def preprocess_data(self, data: Any) -> Any:
        return data

    def postprocess_data(self, data: Any) -> Any:
        return data


def adapters_for_vllm(module: Any) -> dict[str, torch.Tensor]:
    """What EasyR1 puts together for vLLM of a model with adapters; nothing of another model. Collective."""
    if not hasattr(module._fsdp_wrapped_module, "peft_config"):
        return {}
    from verl.workers.sharding_manager.fsdp_vllm import FSDPVLLMShardingManager

    asked = types.SimpleNamespace(module=module, use_param_offload=False)
    found: dict[str, torch.Tensor] = FSDPVLLMShardingManager._collect_lora_weights(asked)
    return found


REWARD_NAME, REWARD_TYPE = "scripted", "batch"
"""What EasyR1 reads from a file of reward functions."""


def reward(inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The script's rewards; a row's ground truth is its prompt's index, its text says which sample it is. The text of a
    row without a trained token is empty."""
    script, scores = ScriptedRollouts(), []
    for row in inputs:
        prompt = int(row["ground_truth"])
        samples = {_text(script, prompt, sample): sample for sample in range(8)}
        scores.append({"overall": script.reward(prompt, samples[row["response"].strip()])})
    return scores


def _text(script: ScriptedRollouts, prompt: int, sample: int) -> str:
    if not any(script.loss_mask(prompt, sample)):
        return ""
    return " ".join(f"w{token - FIRST_WORD}" for token in script.completion(prompt, sample) if token >= FIRST_WORD)
