"""The adapter's specification against pocketgrpo's own functions; needs torch, and trains nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from batchbridge import Source
from batchbridge.kit import Context
from batchbridge.testing import EvidenceContract, Token, ValidCase
from pocketgrpo import Answer, PocketTrainer
from pocketgrpo_batchbridge.config import PocketAdapter

CONTEXT = Context(framework_version="1.0")
TRAINER = "__init__.py: PocketTrainer."
FUNCTIONS = {
    "devices": (f"{TRAINER}__init__",),
    "rollouts": (f"{TRAINER}batches",),
    "prompts": (f"{TRAINER}choose",),
    "steps": (f"{TRAINER}parts",),
    "advantages": (f"{TRAINER}advantages",),
    "weights": (f"{TRAINER}loss",),
    "gradients": (f"{TRAINER}loss",),
    "ratio": (f"{TRAINER}loss",),
    "micro_batches": (f"{TRAINER}parts", f"{TRAINER}update"),
    "truncated": (f"{TRAINER}collect",),
}


def trainer(case: ValidCase, dataset_size: int = 0) -> Any:
    return PocketTrainer(torch.nn.Linear(1, 1), [[0]] * dataset_size, lambda *_: ([], [], 0.0), **case.source.values)


def answer(tokens: int, advantage: float, old: torch.Tensor) -> Answer:
    return Answer(0, 0, [0], [0] * tokens, [1] * tokens, 0.0, advantage, old)


class TestPocketsFunctions(EvidenceContract):
    adapter_class = PocketAdapter
    package = "pocketgrpo"
    functions = FUNCTIONS
    # A micro-batch is a whole step here: smaller ones weigh otherwise, which the adapter calls a defect.
    valid = (
        ValidCase(name="defaults", source=Source(values={"micro": 16}), context=CONTEXT),
        ValidCase(
            name="others",
            source=Source(
                values={"groups": 6, "samples": 2, "updates": 3, "reuse": 2, "micro": 99, "average": "sequence"}
                | {"epochs": 3, "clip": 0.28}
            ),
            context=CONTEXT,
        ),
    )

    def native_devices(self, case: ValidCase) -> int:
        return len({parameter.device for parameter in trainer(case).policy.parameters()})

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        return trainer(case, dataset_size).batches()

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
        return map(trainer(case, dataset_size).choose, itertools.count())

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        one = trainer(case)
        answers = [None] * one.settings["groups"] * one.settings["samples"]
        return [len(part) for turn in range(one.settings["reuse"]) for part in one.parts(answers, 0, turn)]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        return [trainer(case).advantages(rewards) for rewards in groups]

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        new = [torch.zeros(length, requires_grad=True) for length in lengths]
        one, given = trainer(case), iter(new)
        one.logprobs = lambda ids, tokens: next(given)
        one.loss([answer(length, -1.0, torch.zeros(length)) for length in lengths]).backward()
        return [float(each.grad[0]) for each in new]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [one for token in tokens for one in self.native_completion_gradient(case, [token])]

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        new, old = (
            torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64) for name in ("logprob", "old")
        )
        new.requires_grad_()
        one = trainer(case)
        one.logprobs = lambda ids, tokens: new
        one.loss([answer(len(tokens), tokens[0].advantage, old)]).backward()
        return new.grad.tolist()

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        one, sizes = trainer(case), []
        one.share = lambda piece, part, pieces: sizes.append(len(piece)) or 0.0
        one.loss = lambda piece: one.policy.weight.sum()
        one.update(next(one.parts([None] * one.settings["groups"] * one.settings["samples"], 0, 0)))
        return sizes

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        """PocketGRPO sees of a completion its tokens and their mask: whether it was cut, it does not know."""
        one = trainer(case, 2)
        one.generate = lambda prompt, sample: ([0] * length(prompt, sample), [1] * length(prompt, sample), 0.0)
        one.logprobs = lambda ids, tokens: torch.zeros(len(tokens))

        def length(prompt: int, sample: int) -> int:
            return lengths[prompt * one.settings["samples"] + sample]

        return [sum(made.mask) for made in one.collect([0, 1])]
