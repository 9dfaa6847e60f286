"""Scripted rollouts that the training processes generate themselves, as verl does with `rollout.mode=sync`, its default
before 0.7.0. Rows keep their order and their columns. Source: verl 0.6.1 vllm_rollout_spmd.generate_sequences.

Its own file: verl imports it by this name in the training processes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from verl import DataProto

from batchbridge.kit.identified_rows import SAMPLE
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.verl.rollouts import KeepingRollout
from batchbridge_on_cpu.verl.scripted import GREEDY


class PlayingRollout(KeepingRollout):
    """Completions, loss masks and rewards as a pure function of the prompt's text and the sample's number."""

    def generate_sequences(self, prompts: Any, **options: Any) -> Any:
        """The rows of a batch with their completions. A row without a number is the next one of its prompt."""
        script, columns, before = ScriptedRollouts.of_environment(), prompts.non_tensor_batch, Counter[int]()
        width, rows = self.config.response_length, []
        ids, attended = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        columns.pop("raw_prompt_ids", None)
        for place, (tokens, own) in enumerate(zip(ids, attended, strict=True)):
            prompt = script.prompt_index(self.model_config.tokenizer.decode(tokens[own.bool()]))
            sample = int(columns[SAMPLE][place]) if SAMPLE in columns else before[prompt]
            if prompts.meta_info.get("validate"):
                sample = GREEDY
            before[prompt] += 1
            completion = script.completion(prompt, sample)
            reward = [0.0] * (len(completion) - 1) + [script.reward(prompt, sample)]
            of_row = completion, script.loss_mask(prompt, sample), [1] * len(completion), reward
            rows.append([torch.tensor([*values, *[0] * (width - len(values))]) for values in of_row])
        responses, mask, there, rewards = (torch.stack(parts) for parts in zip(*rows, strict=True))
        attention = torch.cat([attended, there], 1)
        return DataProto.from_dict(
            tensors={
                "prompts": ids,
                "responses": responses,
                "input_ids": torch.cat([ids, responses], 1),
                "attention_mask": attention,
                "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
                "response_mask": mask,
                "rm_scores": rewards.float(),
            },
            non_tensors=columns,
        )
