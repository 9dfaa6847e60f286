"""A GRPOTrainer of any TRL release since 0.15, on a model of a few thousand parameters. Imports TRL."""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile

os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # before accelerate is imported, which reads it then

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

VERSION = trl.__version__
WORDS = ["<pad>", "<eos>", "<unk>", *(f"t{number}" for number in range(61))]
QUIET = {"output_dir": tempfile.gettempdir(), "report_to": [], "use_cpu": True, "save_strategy": "no"}
FIELDS = set(inspect.signature(GRPOConfig).parameters)


def tokenizer() -> PreTrainedTokenizerFast:
    """One word, one token."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def model() -> Qwen2ForCausalLM:
    """Two layers of width 32, float32, without dropout."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    config = Qwen2Config(
        vocab_size=len(WORDS),
        num_key_value_heads=2,
        max_position_embeddings=256,
        attn_implementation="eager",
        **sizes,
        **ids,
    )
    return Qwen2ForCausalLM(config)


def dataset(prompts: int) -> Dataset:
    """Prompt `i` is the word `t<i>`."""
    return Dataset.from_dict({"prompt": [f"t{number}" for number in range(prompts)]})


@contextlib.contextmanager
def processes(count: int):
    """Every config and trainer that is built meanwhile believes that `count` processes run."""
    from accelerate import Accelerator

    kept = GRPOConfig.__dict__.get("world_size"), Accelerator.num_processes
    GRPOConfig.world_size = property(lambda self: count)
    Accelerator.num_processes = property(lambda self: count)
    try:
        yield
    finally:
        Accelerator.num_processes = kept[1]
        if kept[0] is None:
            del GRPOConfig.world_size
        else:
            GRPOConfig.world_size = kept[0]


def config(**settings) -> GRPOConfig:
    """A GRPOConfig that reports nowhere."""
    return GRPOConfig(**{**QUIET, **settings})


def trainer(arguments: GRPOConfig, prompts: int, reward, **seams) -> GRPOTrainer:
    """A trainer of the tiny model; `seams` are further arguments of its constructor."""
    return GRPOTrainer(
        model=model(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=dataset(prompts),
        eval_dataset=dataset(4),
        processing_class=tokenizer(),
        **seams,
    )
