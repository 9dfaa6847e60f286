"""The noise of sound runs in the comparison of gradients, by the type in which they are summed up.

    python benchmarks/gradient_noise.py [--runs 48] [--first 0] [--write]

Every run is of another model, other data and other numbers of micro-batches (1 to 64), with gradients that nearly
cancel and gradients that add up, of all tokens and of one alone, and with clipping. It has as many steps as large
gradients have turns, so that every row is looked at. Printed is the largest distance of a parameter's sketch from the
sum of its parts, as in `gradient_sketches.NOISE`: over the root of the squared sizes of all partial sums. The bar is
ten times as much. Run it anew where a sketch or its sizes are computed otherwise.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from batchbridge.kit.gradient_origins import TURNS
from batchbridge.kit.gradient_sketches import NOISE, TIMES, sketches_of
from batchbridge.kit.step_probe import clipping_factor
from batchbridge.testing.tiny import tiny_policy

KINDS = (torch.float32, torch.bfloat16, torch.float16)
MICRO_BATCHES = (1, 2, 3, 4, 8, 16, 32, 64)


def policy(seed: int, kind: torch.dtype) -> Any:
    """A tiny policy; in every fourth run one layer of the widths of Qwen2-0.5B."""
    if seed % 4:
        return tiny_policy(seed=seed).to(kind)
    wide = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=1, **wide)).to(kind)


def noise(kind: torch.dtype, seed: int) -> float:
    """The largest of one run's steps."""
    torch.manual_seed(seed)
    model = policy(seed, kind)
    sketches = sketches_of(model)
    assert sketches is not None
    largest, scale = 0.0, 1024.0 if kind == torch.float16 else 1.0  # nobody trains in fp16 without a loss scale
    for step in range(TURNS):
        model.zero_grad()
        count = MICRO_BATCHES[(seed + step) % len(MICRO_BATCHES)]
        for part in range(count):
            ids = torch.randint(model.config.vocab_size, (2, 12))
            logprobs = model(ids).logits.float().log_softmax(-1)
            tokens = logprobs[:, :-1].gather(-1, ids[:, 1:, None])
            picked = tokens[0, step, 0] if step % 3 == 2 else tokens.mean()  # late in a run few tokens give a gradient
            (picked * scale * (1 if step % 2 else (-1) ** part)).backward()
        bound = 0.01 * scale if step % 4 > 1 else 1e9
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
        sketches.compare(clipping_factor(norm, bound))
        largest = max(largest, sketches.noise)
    sketches.remove()
    return largest


def main() -> None:
    """The table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--runs", type=int, default=48)
    options.add_argument("--first", type=int, default=0, help="the first run's seed; each has the next one")
    options.add_argument("--write", action="store_true", help="put the table into gradient_noise.json")
    asked = options.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for kind in KINDS:
        largest = max(noise(kind, seed) for seed in range(asked.first, asked.first + asked.runs))
        rows[str(kind).removeprefix("torch.")] = {"noise": largest, "bar": float(f"{TIMES * NOISE[kind]:.3g}")}
        print(f"{kind}: largest of {asked.runs} runs {largest:.3g}", flush=True)
    if asked.write:
        found = {"runs": asked.runs, "date": date.today().isoformat(), "torch": torch.__version__, "rows": rows}
        file = Path(__file__).with_suffix(".json")
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
