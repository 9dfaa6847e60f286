"""Runs in which TRL calls a Python function for its model, and asks the model again; what the model says is scripted.

The function, the loop around it and the loss mask are TRL's and Python's own. What a model's tokenizer knows of calls
(how they are written and read) is the tests': a marker, and a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.tiny import EOS, FIRST_WORD, PAD, ScriptedRollouts, tiny_policy, tiny_tokenizer

GROUP = 4
USER, ASSISTANT, TOOL, CALL = 55, 56, 57, 58
TEMPLATE = """
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%} w<user> {{ message['content'] }}
  {%- elif message['role'] == 'tool' -%} w<tool> {{ message['content'] }}
  {%- else -%} w<assistant> {{ message['content'] }}
    {%- for call in message['tool_calls'] or [] %} w<call> {{ call['function'] | tojson }}{% endfor -%}
  {%- endif %} {% endfor -%}
{%- if add_generation_prompt -%} w<assistant> {% endif -%}
"""
for _name, _word in {"user": USER, "assistant": ASSISTANT, "tool": TOOL, "call": CALL}.items():
    TEMPLATE = TEMPLATE.replace(f"<{_name}>", str(_word))


def lookup(word: int) -> str:
    """Two words that belong to a word.

    Args:
        word: Which one.
    """
    calls.append(word)
    return f"w{word * 3 % 50} w{word * 7 % 50}"


calls: list[int] = []
"""The words that were looked up."""


def ids(*words: int) -> list[int]:
    return [FIRST_WORD + word for word in words]


class Calling(ScriptedRollouts):
    """Every second completion calls the function, and goes on with what it said."""

    def asks(self, prompt: int, sample: int) -> bool:
        return (prompt + sample) % 2 == 1

    def word(self, prompt: int, sample: int) -> int:
        return prompt * GROUP + sample

    def first_turn(self, prompt: int, sample: int) -> list[int]:
        if self.asks(prompt, sample):
            return [*ids(CALL, self.word(prompt, sample)), EOS]
        return super().completion(prompt, sample)

    def answered(self, prompt: int, sample: int) -> list[int]:
        word = self.word(prompt, sample)
        return ids(TOOL, word * 3 % 50, word * 7 % 50, ASSISTANT)

    def completion(self, prompt: int, sample: int) -> list[int]:
        first = self.first_turn(prompt, sample)
        if not self.asks(prompt, sample):
            return first
        return first + self.answered(prompt, sample) + super().completion(prompt, sample)

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        if not self.asks(prompt, sample):
            return [1] * len(self.completion(prompt, sample))
        turns = (self.first_turn(prompt, sample), self.answered(prompt, sample), super().completion(prompt, sample))
        return [on for turn, on in zip(turns, (1, 0, 1), strict=True) for _ in turn]


def tokenize(text: str) -> list[int]:
    """Token ids of a scripted prompt, as the template has it."""
    return [*ids(USER), *tiny_tokenizer()(text)["input_ids"], *ids(ASSISTANT)]


class Tokenizer:
    """Made of the tiny one: with a template, and a way to read calls."""

    @staticmethod
    def of(tokenizer: Any) -> Any:
        tokenizer.chat_template = TEMPLATE
        tokenizer.response_template = {}  # what TRL looks for; reading is done here
        tokenizer.parse_response = Tokenizer.parse
        return tokenizer

    @staticmethod
    def parse(response: list[int], **options: Any) -> dict[str, Any]:
        said = list(response)
        message: dict[str, Any] = {"role": "assistant", "content": f"{len(said)} tokens"}
        if said and said[0] == ids(CALL)[0]:
            function = {"name": "lookup", "arguments": {"word": said[1] - FIRST_WORD}}
            message["tool_calls"] = [{"type": "function", "function": function}]
        return message


def tool_trainer(folder: Path, script: Calling, prompts: int = 6, **arguments: Any) -> Any:
    """A `GRPOTrainer` with a tool; one process."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(prompts: Any, completions: Any, **others: Any) -> list[float]:
        who = [(script.prompt_index(each[0]["content"]), row % GROUP) for row, each in enumerate(prompts)]
        return [script.reward(*each) for each in who]

    settings: dict[str, Any] = {
        "output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, "num_generations": GROUP, "max_completion_length": 64,
        "learning_rate": 1e-2, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "optim": "sgd", "beta": 0.0,
    }  # fmt: skip
    rows = {"prompt": [[{"role": "user", "content": script.prompt(index)}] for index in range(prompts)]}
    trainer = GRPOTrainer(
        model=tiny_policy(), args=GRPOConfig(**settings | arguments), train_dataset=Dataset.from_dict(rows),
        processing_class=Tokenizer.of(tiny_tokenizer()), reward_funcs=reward, tools=[lookup],
    )  # fmt: skip

    def turn(input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        said = []
        for row, tokens in enumerate(input_ids.tolist()):
            words = [token - FIRST_WORD for token in tokens if token != PAD]
            text = " ".join(f"w{word}" for word in words[1 : words.index(ASSISTANT)])
            prompt = script.prompt_index(text)
            if TOOL in words:
                sample = words[words.index(CALL) + 1] - prompt * GROUP
                said.append(ScriptedRollouts.completion(script, prompt, sample))
            else:
                said.append(script.first_turn(prompt, row % GROUP))
        rows = [torch.tensor(each) for each in said]
        return torch.cat([input_ids, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)], dim=1)

    trainer.model.generate = turn
    return trainer
