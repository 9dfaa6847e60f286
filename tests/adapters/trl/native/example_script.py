"""A stock example of TRL as `__main__`, on a machine without a hub and a GPU: `example_script.py FILE WORDS`.

The file is the example's own, and runs unchanged. Only what the machine lacks is replaced, and each replacement is one
function here: models of the hub are the tests' tiny one, data sets a few rows with the same columns, vLLM is off, and
lengths and the number of steps are a CPU's. `accuracy_reward` would be 0 for all that a tiny model says, and no
advantage would be left to hold: it is some number of the text. BATCHBRIDGE_TAMPERED=1: gradients are changed behind the
trainer's back, as no example does.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HUB = Path("hub").absolute()
os.environ.update(
    ACCELERATE_USE_CPU="true", TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_CACHE=str(HUB), HF_HUB_OFFLINE="1", WANDB_MODE="off"
)

import datasets
import torch
import transformers
import trl
import trl.rewards

from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

torch.set_num_threads(1)

STEPS, ROWS = 12, 48
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-1.7B")
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}{{ 'w59 ' }}{% endif %}"
)
ON_A_CPU: dict[str, Any] = {
    "use_cpu": True,
    "use_vllm": False,
    "max_completion_length": 12,
    "max_steps": STEPS,
    "report_to": [],
    "push_to_hub": False,
    "save_strategy": "no",
}
"""What the machine takes of a trainer's configuration, in place of the example's."""


def tokenizer_with_answers() -> Any:
    """The tiny one with right and wrong answers for words, so that an example's own reward has something to tell."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    text = tiny_tokenizer().backend_tokenizer.to_str()
    for word in range(40, 56):
        text = text.replace(f'"w{word}"', f'"####{"3" if word % 2 else "4"}{"," * (word - 40)}"')
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **special)


def models_of_the_hub() -> None:
    """The tiny policy under each name, where `from_pretrained` looks without a network."""
    tokenizer = tokenizer_with_answers()
    tokenizer.chat_template = TEMPLATE
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    for name in MODELS:
        kept = HUB / f"models--{name.replace('/', '--')}"
        revision = "0" * 40
        (kept / "refs").mkdir(parents=True, exist_ok=True)
        (kept / "refs" / "main").write_text(revision)
        tiny_policy().save_pretrained(kept / "snapshots" / revision)
        tokenizer.save_pretrained(kept / "snapshots" / revision)


COLUMNS: dict[str, Callable[[str], dict[str, Any]]] = {
    "AI-MO/NuminaMath-TIR": lambda text: {"problem": text, "solution": "3", "messages": []},
    "openai/gsm8k": lambda text: {"question": text, "answer": "#### 3"},
    "trl-lib/DeepMath-103K": lambda text: {"prompt": [{"role": "user", "content": text}], "solution": "3"},
}
"""The columns that examples read, by data set."""


def rows(path: str, *_: Any, split: Any = None, **__: Any) -> Any:
    """As `datasets.load_dataset`: one data set for a split, a list for a list, all splits in a dictionary for none."""
    made = [COLUMNS[path](ScriptedRollouts().prompt(index)) for index in range(ROWS)]
    if isinstance(split, list):
        return [datasets.Dataset.from_list(made) for _ in split]
    one = datasets.Dataset.from_list(made)
    return one if split else datasets.DatasetDict(train=one, test=one)


def some_reward(completions: list[Any], **_: Any) -> list[float]:
    """Some number of the text; a group seldom has one only."""
    return [float(sum(map(ord, said[-1]["content"])) % 7) / 3 for said in completions]


def settings_of_a_cpu(config: type) -> None:
    """Each configuration of the class has `ON_A_CPU`, whoever builds it."""
    native = config.__post_init__

    def replaced(self: Any) -> None:
        for name, value in ON_A_CPU.items():
            setattr(self, name, value)
        native(self)

    config.__post_init__ = replaced


class Tampering(transformers.TrainerCallback):
    """Gradients one and a half times as large, between backward and the update of the fifth step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            for parameter in kwargs["model"].parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(1.5)


def main(file: str, *words: str) -> None:
    models_of_the_hub()
    datasets.load_dataset = rows
    trl.rewards.accuracy_reward = some_reward
    for config in (trl.GRPOConfig, trl.RLOOConfig):
        settings_of_a_cpu(config)
    for trainer in (trl.GRPOTrainer, trl.RLOOTrainer):
        trainer.push_to_hub = lambda self, *args, **kwargs: None
    if os.environ.get("BATCHBRIDGE_TAMPERED") == "1":
        transformers.trainer.DEFAULT_CALLBACKS.append(Tampering)
    sys.argv = [file, *words]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
