"""What verl's function for prompts that a group shares (`use_prefix_grouper`) computes, on a CPU.

    python benchmarks/verl_prefix_grouper.py [--write]

No worker of verl 0.8.0 to 0.9.1 calls it (BB-VERL-091); the workers of 0.7.1 did. Here it is called: two groups of
three completions, a tiny policy, a made-up weight for each trained token. The gradient is compared with that of one
completion after another in float64, by the bar of the native tests. Control: one completion after another in float32.
--write puts the table into verl_prefix_grouper.md beside this file. Needs what `nox -s verl` installs, and
`prefix_grouper`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import batchbridge_on_cpu.verl.cpu  # noqa: F401 - before verl's modules ask for their device

# isort: split
import torch
from verl.models.transformers import monkey_patch
from verl.trainer.ppo import prefix_grouper_utils

from batchbridge.testing.oracle import double, relative_error
from batchbridge.testing.tiny import tiny_policy

GROUPS = ((5, (3, 7, 4)), (9, (6, 2, 8)))
"""Tokens of each prompt, and of its completions."""
PROMPT, COMPLETION = 12, 8
"""Tokens that prompts are padded to on the left, completions on the right."""
BY_MASK = "a mask of one row per sequence, as flash attention reads it"
Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, str]
"""Prompt, completion, which of its tokens are trained, their weights, group."""


def rows(*, holes: bool) -> list[Row]:
    """The completions. holes: one token inside of two of them is not trained, as a tool's answer is not."""
    generator, made = torch.Generator().manual_seed(0), []
    for group, (prompt_tokens, lengths) in enumerate(GROUPS):
        prompt = torch.randint(3, 64, (prompt_tokens,), generator=generator)
        for length in lengths:
            completion = torch.randint(3, 64, (length,), generator=generator)
            mask = torch.ones(length, dtype=torch.long)
            if holes and length == lengths[0]:
                mask[1] = 0
            made.append((prompt, completion, mask, torch.randn(length, generator=generator), f"group {group}"))
    return made


def gradient(model: Any) -> torch.Tensor:
    found = torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])
    model.zero_grad()
    return found


def one_by_one(model: Any, given: Sequence[Row]) -> torch.Tensor:
    """The gradient of each completion behind its own prompt."""
    for prompt, completion, mask, weights, _ in given:
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, completion[:, None])[:, 0]
        (logprobs * mask * weights).sum().backward()
    return gradient(model)


def grouped(model: Any, given: Sequence[Row]) -> torch.Tensor:
    """The gradient by verl's function."""

    def padded(values: torch.Tensor, size: int, *, left: bool = False) -> torch.Tensor:
        spare = values.new_zeros(size - len(values))
        return torch.cat([spare, values] if left else [values, spare])

    micro_batch = {
        "prompts": torch.stack([padded(prompt, PROMPT, left=True) for prompt, *_ in given]),
        "responses": torch.stack([padded(completion, COMPLETION) for _, completion, *_ in given]),
        "response_mask": torch.stack([padded(mask, COMPLETION) for _, _, mask, *_ in given]),
        "uid": [group for *_, group in given],
    }
    grouper, ids, attention, positions, responses, mask = prefix_grouper_utils.build_pg_from_micro_batch(micro_batch, 0)
    found, _, trained = prefix_grouper_utils.pg_forward(model, grouper, ids, attention, positions, responses, mask)
    logprobs = found.new_zeros(mask.shape)
    logprobs[:, : found.shape[1]] = found.masked_fill(trained == 0, 0)
    # It puts the trained tokens of a completion first.
    weights = torch.stack([padded(weights[tokens.bool()], COMPLETION) for _, _, tokens, weights, _ in given])
    (logprobs * weights).sum().backward()
    return gradient(model)


def by_mask(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention of transformers' interface, the last query beside the last key; `mask`: (sequences, keys)."""
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    key, value = (values.repeat_interleave(heads // values.shape[1], 1) for values in (key, value))
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    if mask is not None:
        seen = seen & mask.bool()[:, None, None, :]
    scores = (query @ key.transpose(2, 3) * options["scaling"]).masked_fill(~seen, -1e30)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def measure() -> list[tuple[str, str, str]]:
    """Attention, completions, and the error over the bar or what is raised."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    monkey_patch.apply_prefix_grouper_patch()
    ALL_ATTENTION_FUNCTIONS["by_mask"] = monkey_patch._create_prefix_grouper_wrapper(by_mask)
    found = []
    whole = "every token is trained"
    cases: tuple[tuple[str, str, str, bool, Callable[..., torch.Tensor]], ...] = (
        ("control: one completion after another", whole, "eager", False, one_by_one),
        (BY_MASK, whole, "by_mask", False, grouped),
        (BY_MASK, "one token of two is not trained", "by_mask", True, grouped),
        ("sdpa", whole, "sdpa", False, grouped),
        ("eager", whole, "eager", False, grouped),
    )
    for name, of, attention, holes, run in cases:
        given, policy = rows(holes=holes), tiny_policy()
        policy.set_attn_implementation("eager")
        exact, floor = one_by_one(double(policy), given), one_by_one(policy, given)
        bar = max(1e-6, 3 * relative_error(floor, exact))
        policy.set_attn_implementation(attention)
        try:
            said = f"{relative_error(run(policy, given), exact) / bar:.2g}"
        except RuntimeError as error:
            said = f"{type(error).__name__}: {str(error)[:60]}..."
        found.append((name, of, said))
    return found


def page(found: Sequence[tuple[str, str, str]]) -> str:
    packages = ("verl", "prefix_grouper", "transformers", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    lines = [f"| {name} | {of} | {said} |" for name, of, said in found]
    return "\n".join(
        [
            "# verl's function for prompts that a group shares",
            "",
            f"Written by `python benchmarks/verl_prefix_grouper.py --write`: {versions}.",
            "",
            "No worker of verl 0.8.0 to 0.9.1 calls it. Error of the gradient over the bar (1e-6, or three times plain",
            "float32's own error): 1 or less is exact.",
            "",
            "| attention | completions | error over the bar |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


def main() -> None:
    torch.set_num_threads(1)
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true")
    written = page(measure())
    if arguments.parse_args().write:
        Path(__file__).with_suffix(".md").write_text(written, encoding="utf-8")
    print(written)


if __name__ == "__main__":
    main()
