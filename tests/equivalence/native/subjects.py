"""What a case trains: the policy, how its prompts are read, and what a comparison is told about it. Needs torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from batchbridge.testing.oracle import Sample
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer
from batchbridge.testing.trajectories import log_probabilities


@dataclasses.dataclass(frozen=True)
class Subject:
    """policy: makes it. shown: `tokenize` and `inputs`, see `ScriptedRun`. says: what a policy with these parameters
    says. alter: a completion as it must not be trained: behind other pictures; None: nothing is to be mixed up."""

    policy: Callable[[], Any]
    shown: Mapping[str, Any]
    says: Callable[[torch.Tensor], torch.Tensor]
    alter: Callable[[Sample], Sample] | None = None


@functools.cache
def of_text() -> Subject:
    """The tiny policy."""
    tokenizer = tiny_tokenizer()
    return Subject(tiny_policy, {"tokenize": lambda text: tokenizer(text)["input_ids"]}, log_probabilities)


@functools.cache
def of_images() -> Subject:
    """A policy that reads images, and prompts that stand behind theirs."""
    from batchbridge_on_cpu import seeing

    shown = {"tokenize": seeing.tokenize, "inputs": seeing.inputs}

    def says(parameters: torch.Tensor) -> torch.Tensor:
        return log_probabilities(parameters, policy=seeing.seeing_policy(), **shown)

    def alter(sample: Sample) -> Sample:
        others = seeing.inputs(sample.group, len(sample.completion), others=True)
        return dataclasses.replace(sample, inputs=others)

    return Subject(seeing.seeing_policy, shown, says, alter)
