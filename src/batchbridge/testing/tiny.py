"""A tiny policy, its tokenizer, and scripted rollouts: what equivalence tests train on.

Needs torch, transformers and tokenizers; nothing is downloaded. Completions are a pure function of (prompt, sample), so
that two frameworks, two world sizes and two runs see the same tokens; their lengths are ragged.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WORDS = 61
"""Words in the vocabulary, after <pad>, <eos> and <unk>."""
PAD, EOS, FIRST_WORD = 0, 1, 3
FLAT, BINARY, SCRIPT = "BATCHBRIDGE_FLAT", "BATCHBRIDGE_BINARY", "BATCHBRIDGE_SCRIPT"
"""Environment variables, see `ScriptedRollouts.of_environment`."""
_LENGTHS = (1, 2, 3, 5, 8, 12, 17, 23)


def tiny_tokenizer() -> Any:
    """A word-level `PreTrainedTokenizerFast` over `w0 ... w60`, padding on the left."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


TINY: Mapping[str, Any] = {
    "vocab_size": FIRST_WORD + WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "initializer_range": 0.2,
}
"""Sizes of a policy that a CPU trains in no time, by the names that transformers' configurations have for them."""


def tiny_policy(seed: int = 0, *, layers: int = 2, width: int = 32, dtype: torch.dtype | None = None) -> Any:
    """A randomly initialised Llama, two layers of width 32 by default, without biases or dropout.

    Weights are large enough that gradients are far from zero, and no parameter's gradient vanishes identically
    (AdamW would move such a parameter by rounding noise). `dtype` defaults to float32.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**TINY, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    config = LlamaConfig(**sizes, tie_word_embeddings=False, attn_implementation="eager")
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(generator_state)
    return model.to(dtype or torch.float32)


@dataclass(frozen=True)
class ScriptedRollouts:
    """Scripted rollouts: prompts, completions, loss masks and rewards as pure functions of (prompt, sample).

    empty: (prompt, sample) pairs whose loss mask is all zero, as an environment's feedback would be.
    longest: completions are cut to this many tokens, end-of-sequence included. flat: prompts whose completions all earn
    the same reward, as a group filter drops them. binary: rewards are 0 or 1.
    """

    empty: frozenset[tuple[int, int]] = frozenset({(1, 1)})
    longest: int = 24
    flat: frozenset[int] = frozenset()
    binary: bool = False

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> ScriptedRollouts:
        """The script that scripted engines play: `BATCHBRIDGE_FLAT`: flat prompts, between commas.
        `BATCHBRIDGE_BINARY`: rewards are 0 or 1. `BATCHBRIDGE_SCRIPT`: rollouts of another kind, as `module:function`
        of a function that takes the environment."""
        if named := environment.get(SCRIPT):
            module, _, function = named.partition(":")
            made: ScriptedRollouts = getattr(importlib.import_module(module), function)(environment)
            return made
        flat = frozenset(int(prompt) for prompt in environment.get(FLAT, "").split(",") if prompt)
        return cls(flat=flat, binary=bool(environment.get(BINARY)))

    def prompt(self, index: int) -> str:
        """The text of prompt `index`: two to four words, the first two of which identify it (below 3,721 prompts)."""
        words = [index % WORDS, index // WORDS % WORDS, *((index * 7 + k) % WORDS for k in range(index % 3))]
        return " ".join(f"w{word}" for word in words)

    def prompt_index(self, text: str) -> int:
        """The inverse of `prompt`."""
        first, second = (int(word[1:]) for word in text.split()[:2])
        return first + WORDS * second

    def completion(self, prompt: int, sample: int) -> list[int]:
        """Token ids, ending with end-of-sequence."""
        length = _LENGTHS[(prompt * 3 + sample) % len(_LENGTHS)]
        words = [FIRST_WORD + (prompt * 7 + sample * 11 + k * 5 + k * k) % WORDS for k in range(length)]
        return [*words[: self.longest - 1], EOS]

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        """One entry per token of `completion`: 1 where the policy wrote it."""
        return [0 if (prompt, sample) in self.empty else 1] * len(self.completion(prompt, sample))

    def reward(self, prompt: int, sample: int) -> float:
        """The reward between 0 and 6; within a group of up to seven never equal, or always where the prompt is flat.
        binary: 1 from 4 on, else 0; both occur in a group of four or more that is not flat."""
        earned = (prompt * 5 + (0 if prompt in self.flat else sample * 3)) % 7
        return float(earned >= 4 if self.binary else earned)


if not TYPE_CHECKING:  # a type checker takes the new name
    from batchbridge.renamed import old_names

    __getattr__ = old_names(__name__)
