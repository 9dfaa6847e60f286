"""A stock example of TRL as `__main__`, on a machine without a hub and a GPU: `example_script.py FILE WORDS`.

The file is the example's own, and runs unchanged. Only what the machine lacks is replaced, and each replacement is one
function here: models of the hub are the tests' tiny ones, data sets a few rows with the same columns, vLLM is off, and
lengths and the number of steps are a CPU's. `accuracy_reward` would be 0 for all that a tiny model says, and no
advantage would be left to hold: it is some number of the text. The processor of images is the tests' (transformers' own
needs torchvision), and so is what reads a call of a function from what a tiny model says. BATCHBRIDGE_TAMPERED=1:
gradients are changed behind the trainer's back, as no example does.
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
from pictures import FAMILIES, Processor, qwen
from PIL import Image
from tools_script import TEMPLATE as TEMPLATE_OF_TOOLS

from batchbridge.testing.tiny import FIRST_WORD, ScriptedRollouts, tiny_policy, tiny_tokenizer

torch.set_num_threads(1)

STEPS, ROWS = 12, 48
HELD_OUT = 100
"""Rows beyond, where an example splits a data set by a number of its own."""
OF_TEXT = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B")
OF_IMAGES = "Qwen/Qwen2.5-VL-3B-Instruct"
WITH_TOOLS = {"grpo_agent.py": "query_biogrid", "grpo_2048.py": "move"}
"""The function that an example gives its model."""
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
IN_TURNS: dict[str, Any] = {
    "max_completion_length": 96,
    # A turn of the tiny model would take all of it: it ends after a few words.
    "generation_kwargs": {"exponential_decay_length_penalty": (2, 2.0)},
    # TRL 1.16.0 cannot print what `query_biogrid` returns, a list of tuples: AttributeError, wrapped or not.
    "log_completions": False,
}
"""The same, of an example with several turns."""


def tokenizer_with_answers() -> Any:
    """The tiny one with right and wrong answers for words, so that an example's own reward has something to tell."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    text = tiny_tokenizer().backend_tokenizer.to_str()
    for word in range(40, 56):
        text = text.replace(f'"w{word}"', f'"####{"3" if word % 2 else "4"}{"," * (word - 40)}"')
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **special)


def models_of_the_hub(template: str) -> None:
    """A tiny policy under each name, where `from_pretrained` looks without a network."""
    tokenizer = tokenizer_with_answers()
    tokenizer.chat_template = template
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    for name in (*OF_TEXT, OF_IMAGES):
        kept = HUB / f"models--{name.replace('/', '--')}"
        revision = "0" * 40
        (kept / "refs").mkdir(parents=True, exist_ok=True)
        (kept / "refs" / "main").write_text(revision)
        (qwen if name == OF_IMAGES else tiny_policy)().save_pretrained(kept / "snapshots" / revision)
        tokenizer.save_pretrained(kept / "snapshots" / revision)


class ProcessorOfImages(Processor):
    """The tests' processor: an image's picture is the number that its first pixel has."""

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        numbers = images and [[one.getpixel((0, 0))[0] for one in row] for row in images]
        return super().__call__(numbers, text, **options)


def processors(tool: str | None) -> None:
    """`AutoProcessor` has the tests' for the model that reads images; another's tokenizer reads calls of the tool."""
    native = transformers.AutoProcessor.from_pretrained

    def replaced(name: str, *args: Any, **options: Any) -> Any:
        if name == OF_IMAGES:
            tokenizer = tiny_tokenizer()
            tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<start>", "<end>"]})
            return ProcessorOfImages(tokenizer, next(family for family in FAMILIES if family.startswith("Qwen2-VL")))
        found = native(name, *args, **options)
        if tool is not None:
            found.response_template = {}  # what TRL looks for; reading is done here
            found.parse_response = lambda response, **options: parsed(tool, response)
        return found

    transformers.AutoProcessor.from_pretrained = replaced


def parsed(tool: str, response: list[int]) -> dict[str, Any]:
    """What a tiny model says has a call in it, or none, by its first token; two in three have one."""
    said = [max(token - FIRST_WORD, 0) for token in response]
    message: dict[str, Any] = {"role": "assistant", "content": ("*yes*", "*no*", "perhaps")[said[-1] % 3]}
    if said[0] % 3:
        function = {"name": tool, "arguments": ARGUMENTS[tool](said[0])}
        message["tool_calls"] = [{"type": "function", "function": function}]
    return message


ARGUMENTS: dict[str, Callable[[int], dict[str, str]]] = {
    "move": lambda word: {"direction": ("up", "left", "down", "right")[word % 4]},
    "query_biogrid": lambda word: {"sql_command": f"SELECT gene FROM interactions WHERE gene = 'g{word % 8}'"},
}
"""The arguments of a call, by the function."""


def image(text: str) -> Any:
    return Image.new("RGB", (8, 8), (len(text) % 6, 0, 0))


COLUMNS: dict[str, Callable[[str], dict[str, Any]]] = {
    "AI-MO/NuminaMath-TIR": lambda text: {"problem": text, "solution": "3", "messages": []},
    "openai/gsm8k": lambda text: {"question": text, "answer": "#### 3"},
    "qgallouedec/biogrid": lambda text: {"gene": f"g{len(text) % 6}"},
    "qgallouedec/biogrid_qa": lambda text: {"question": f"Does the gene {text}", "answer": "yes"},
    "lmms-lab/multimodal-open-r1-8k-verified": lambda text: {"problem": text, "image": image(text), "solution": "3"},
    "trl-lib/DeepMath-103K": lambda text: {"prompt": [{"role": "user", "content": text}], "solution": "3"},
}
"""The columns that examples read, by data set."""


def rows(path: str, *_: Any, split: Any = None, **__: Any) -> Any:
    """As `datasets.load_dataset`: one data set for a split, a list for a list, all splits in a dictionary for none."""
    number = ROWS + HELD_OUT * path.startswith("lmms-lab/")
    made = [COLUMNS[path](ScriptedRollouts().prompt(index)) for index in range(number)]
    if isinstance(split, list):
        return [datasets.Dataset.from_list(made) for _ in split]
    one = datasets.Dataset.from_list(made)
    return one if split else datasets.DatasetDict(train=one, test=one)


def some_reward(completions: list[Any], **_: Any) -> list[float]:
    """Some number of the text; a group seldom has one only."""
    return [float(sum(map(ord, said[-1]["content"])) % 7) / 3 for said in completions]


def settings_of_a_cpu(config: type, settings: dict[str, Any]) -> None:
    """Each configuration of the class has these settings, whoever builds it."""
    native = config.__post_init__

    def replaced(self: Any) -> None:
        for name, value in settings.items():
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
    tool = WITH_TOOLS.get(Path(file).name)
    models_of_the_hub(TEMPLATE_OF_TOOLS if tool else TEMPLATE)
    processors(tool)
    datasets.load_dataset = rows
    trl.rewards.accuracy_reward = some_reward
    for config in (trl.GRPOConfig, trl.RLOOConfig):
        settings_of_a_cpu(config, ON_A_CPU | IN_TURNS if tool else ON_A_CPU)
    for trainer in (trl.GRPOTrainer, trl.RLOOTrainer):
        trainer.push_to_hub = lambda self, *args, **kwargs: None
    if os.environ.get("BATCHBRIDGE_TAMPERED") == "1":
        transformers.trainer.DEFAULT_CALLBACKS.append(Tampering)
    sys.argv = [file, *words]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
