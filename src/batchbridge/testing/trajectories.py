"""The answer of the tiny policy where a run ends: by this ends are compared, and not by their parameters.

A parameter is stored in float32, rounded by some 3e-8 of itself at every step, whatever moved it: up to 1e-5 of the
movement of a run that moves by 1 %. The learned part of a movement shows in full in the log-probabilities, in float64,
of the script's completions; the rounding hardly. See `batchbridge.testing.equivalence` for the bars.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from batchbridge.testing.oracle import Sample, logprobs
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

PROMPTS, SAMPLES = 12, 4
"""The numbers of the completions by which ends are compared, whatever the runs trained."""
ModelInputs = Callable[[int, int], Mapping[str, torch.Tensor]]
"""The function from (prompt, completion tokens) to the policy's inputs: see `Sample`."""


def log_probabilities(
    parameters: torch.Tensor,
    script: ScriptedRollouts | None = None,
    *,
    policy: Any = None,
    tokenize: Callable[[str], Sequence[int]] | None = None,
    inputs: ModelInputs | None = None,
) -> torch.Tensor:
    """The log-probabilities that a tiny policy with these parameters (flat) gives every token of the script's
    completions, float64.

    policy: of which architecture; the tiny policy's by default. tokenize: a prompt's token ids; the tiny tokenizer's by
    default. inputs: what the policy is given beside tokens.
    """
    policy = copy.deepcopy(double_policy() if policy is None else policy).double().eval()
    script, tokenize = script or ScriptedRollouts(), tokenize or tokens
    torch.nn.utils.vector_to_parameters(parameters.double(), policy.parameters())
    said = []
    with torch.no_grad():
        for prompt in range(PROMPTS):
            ids = tokenize(script.prompt(prompt))
            for sample in range(SAMPLES):
                completion, mask = script.completion(prompt, sample), script.loss_mask(prompt, sample)
                one = Sample(prompt=ids, completion=completion, loss_mask=mask, group=prompt, advantage=0.0)
                if inputs is not None:
                    one = dataclasses.replace(one, inputs=inputs(prompt, len(completion)))
                said.append(logprobs(policy, one))
    return torch.cat(said)


def tokens(text: str) -> list[int]:
    """A prompt's token ids, by the tiny tokenizer."""
    ids: list[int] = _tokenizer()(text)["input_ids"]
    return ids


@functools.cache
def _tokenizer() -> Any:
    return tiny_tokenizer()


@functools.cache
def double_policy() -> Any:
    """The tiny policy in float64, in evaluation mode; one for all who ask: copy it to change it."""
    return tiny_policy(dtype=torch.float64).eval()
