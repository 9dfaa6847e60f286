"""Laws that hold a specification against the framework's own functions.

`AdapterContract` compares an adapter with what its author wrote down, and an author who misreads a setting writes the
misreading twice. Here the author hands over the framework's functions, and says nothing about their results:

    class TestMyFramework(EvidenceContract):
        adapter_class = MyAdapter
        valid = (ValidCase("token mean", Source(values={...}), Context(framework_version="2.1", world_size=2)), ...)

        def native_advantages(self, case, groups):
            from my_framework.advantages import normalise

            return [normalise(rewards, **case.source.values) for rewards in groups]

A method that is not overridden says that the framework has no such function to ask: its law is skipped, by that reason.
One that calls no code of the framework proves nothing: with `package` and `functions`, the framework's functions that
answer each law, a test sees that they were called, and writes what `batchbridge adapters` and `explain` say
(`batchbridge.testing.recording`). With `record`, answers are replayed where the framework is not installed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge.contract.held import LAWS
from batchbridge.errors import PlanError
from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.derived import derive
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Objective, Spec
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.testing.laws import ValidCase, spec_of, vacuous
from batchbridge.testing.recording import RecordedLaws

if TYPE_CHECKING:
    import pytest

__all__ = ["EvidenceContract", "Token"]

NEAR = 1e-5
"""The most that a number of the framework's, computed in float32, may be off, relative to the largest of its kind."""
REWARDS = (1.0, 0.0, 0.0, 0.25, -1.0, 3.0, 0.5, 1.5)
"""Rewards that tell rules of advantages apart; groups take them in turn, each from another place on."""
LENGTHS = (3, 1, 7, 2, 5, 4, 9, 6)
"""Trained tokens of a step's completions: no two means of them are equal."""
GROUPS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token:
    """A trained token as its loss reads it.

    logprob, old, reference: its log-probability (nats) now, when the ratio's denominator was taken, and by the
    reference model. advantage: that of its completion, which has no other token.
    """

    logprob: float
    old: float
    reference: float
    advantage: float


TOKENS = tuple(
    Token(logprob=-2.0, old=-2.0 - ratio, reference=-2.0 - apart, advantage=advantage)
    for ratio, apart, advantage in itertools.product(
        (-1.5, -0.4, -0.25, -0.1, -0.02, 0.0, 0.07, 0.15, 0.22, 0.255, 0.3, 0.9, 1.5),
        (-22.0, -0.6, 0.0, 0.3, 15.0),
        (1.0, -0.7),
    )
)
"""On both sides of every usual bound of the ratio (0.8, 1.2, 1.28, 1.3) and of the estimates of KL, and on none."""
COMPLETIONS = tuple(
    tuple(
        Token(logprob=-2.0, old=-2.0 - ratio, reference=-1.9, advantage=advantage) for ratio in (-0.001, 0.9, 0.0, -0.9)
    )
    for advantage in (1.0, -0.7)
)
"""Their tokens' ratios are far apart, and that of the whole completion is near 1: clipped by no usual bound."""

SAMPLED = tuple(
    tuple((-2.0, -2.0 - apart) for apart in completion)
    for completion in ((0.0,), (1.7, -0.1), (-1.2, 0.03, 0.4), (2.4, -2.4, 0.0, 0.01), (-0.02, 0.3))
)
"""Completions' tokens, by their log-probabilities when the ratio's denominator was taken, and when they were sampled:
on both sides of every usual bound of their ratio (0.5, 2.0, 5.0), token by token and in the whole completion."""
CORRECTION = re.compile(r"(token|sequence)_(truncate|mask) \[(\S+), (\S+)\]")
"""Corrections towards the sampler that have a formula here."""


class EvidenceContract(RecordedLaws):
    """The laws of evidence, for a subclass `Test...` with `adapter_class`, `valid` cases and the framework's functions
    as methods: pytest runs each law on each case.

    Each method is given the case. It calls the framework's code as the framework would with these settings, and returns
    what comes out. None: there is no function to ask.
    """

    def native_devices(self, case: ValidCase) -> int | None:
        """The devices that train, as the framework counts them from its settings."""

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int | None:
        """The rollouts of the whole run over so many prompts."""

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterable[Sequence[int]] | None:
        """The prompts of each rollout, by their place in the dataset, from the first one on; those of three epochs are
        looked at."""

    def native_step_sizes(self, case: ValidCase) -> Sequence[int] | None:
        """The completions of the run's first rollout in each optimizer step that trains any of them, all passes of
        it."""

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> Sequence[Sequence[float]] | None:
        """The advantage of each completion. groups: rewards, group by group."""

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> Sequence[float] | None:
        """The weight of a token of each completion in a whole optimizer step: the gradient of the step's loss with
        respect to that token's loss. lengths: trained tokens of each completion, groups one after another."""

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> Sequence[float] | None:
        """The gradient of each token's loss, KL term included, with respect to its log-probability, unweighted."""

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> Sequence[float] | None:
        """The gradient of the mean loss of one completion's tokens, which all have its advantage, with respect to the
        log-probability of each."""

    def native_micro_batches(self, case: ValidCase) -> Sequence[int] | None:
        """The completions of each micro-batch in which one replica of the model trains its share of the run's first
        optimizer step."""

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> Sequence[float] | None:
        """The KL penalty, below zero where it takes away, that the rewards of completions of one token each get, whose
        log-probability is `old` and by the reference model `reference`."""

    def native_staleness(self, case: ValidCase) -> float | None:
        """The largest age of weights whose completions are trained, as the framework's own queue, buffer or version
        check lets it be, and counted as there; `math.inf`: nothing bounds it."""

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> Sequence[int | None] | None:
        """The tokens of each completion that the loss trains, groups one after another; None for a completion that does
        not reach training. lengths: tokens of each. truncated: whether it was cut at the length limit."""

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> Sequence[Sequence[float]] | None:
        """The factor of each token's loss that corrects towards the sampler. completions: the log-probabilities of each
        token, as the trainer computes it for the weights of the rollout, and as the sampler said it."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test of each law for each case."""
        if "valid_case" in metafunc.fixturenames:
            metafunc.parametrize("valid_case", self.valid, ids=[case.name for case in self.valid])

    def test_devices_are_those_that_the_framework_counts(self, valid_case: ValidCase) -> None:
        found, said = self._asked("devices", valid_case), self._spec(valid_case).topology.world_size
        assert found == said, f"{found} devices train natively, and topology.world_size says {said}"

    def test_the_run_has_the_frameworks_number_of_rollouts(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        for size in _dataset_sizes(spec):
            found, said = self._asked("rollouts", valid_case, size), derive(spec, size)["total_rollouts"]
            assert found == said, f"{size} prompts: {found} rollouts natively, {said} by the specification"

    def test_rollouts_have_the_prompts_that_the_framework_takes(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        for size in _dataset_sizes(spec):
            native = self._asked("prompts", valid_case, size)
            plan = _planned(_unfiltered(spec), size)
            said = [plan.rollout(index).prompts for index in range(_rollouts_of_two_epochs(plan))]
            found = [tuple(prompts) for prompts in itertools.islice(native, len(said))]
            sizes, said_sizes = [len(prompts) for prompts in found], [len(prompts) for prompts in said]
            assert sizes == said_sizes, f"{size} prompts: rollouts of {sizes} natively, {said_sizes} are said"
            shuffled = spec.order.prompt_shuffle
            if shuffled == "none":
                assert found == said, f"{size} prompts in the dataset's order are said, natively {found}"
            elif shuffled == "epoch_permutation":
                epochs = _epochs(found, plan)
                again = [one for one in epochs if len(set(one)) < len(one)]
                assert not again, f"each prompt once in an epoch is said, natively {again[0]}"
                orderly = all(list(one) == sorted(one) for one in epochs)
                assert not orderly, f"{size} prompts, permuted anew in each epoch, are said; natively {found}"
            else:
                vacuous(f"order.prompt_shuffle is {shuffled}: any prompt may come")

    def test_a_rollout_is_trained_in_the_frameworks_steps(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        found = self._asked("steps", valid_case)
        said = _steps_of(spec)
        assert found == said, f"a rollout is trained in steps of {found} completions natively, {said} are said"

    def test_advantages_are_those_that_the_framework_computes(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        size = spec.rollout.completions_per_prompt
        groups = [[REWARDS[(3 * at + place) % len(REWARDS)] for place in range(size)] for at in range(GROUPS)]
        groups.append([0.5] * size)  # nothing to tell these completions apart by
        found = self._asked("advantages", valid_case, groups)
        if spec.advantage.baseline in ("open", "value"):
            vacuous(f"advantage.baseline is {spec.advantage.baseline}: rewards do not decide it")
        _alike("advantages", _flat(found), _flat(group_advantages(groups, spec.advantage)))

    def test_tokens_weigh_what_they_weigh_in_the_framework(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        size = spec.rollout.completions_per_prompt
        lengths = [LENGTHS[place % len(LENGTHS)] + place // len(LENGTHS) for place in range(2 * size)]
        found = self._asked("weights", valid_case, lengths)
        rows = [Row(tokens=tokens, group=place // size) for place, tokens in enumerate(lengths)]
        said = [float(weight) for weight in token_weights(spec.loss.policy, rows)]
        _alike(f"weights of tokens ({spec.loss.policy.aggregation} is said)", found, said)

    def test_a_token_has_the_frameworks_gradient(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        found = self._asked("gradients", valid_case, TOKENS)
        said = _gradients_of(spec, TOKENS)
        for token, native, ours in zip(TOKENS, found, said, strict=True):
            close = math.isclose(native, ours, rel_tol=NEAR, abs_tol=NEAR)
            assert close, f"{token}: gradient {native:.6g} natively, {ours:.6g} by {spec.objective}"

    def test_the_ratio_is_taken_over_what_the_framework_takes_it_over(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        for tokens in COMPLETIONS:
            found = self._asked("ratio", valid_case, tokens)
            _alike(f"gradients ({spec.objective.ratio_level} is said)", found, _gradients_of(spec, tokens, alone=False))

    def test_a_micro_batch_has_the_frameworks_completions(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        found = self._asked("micro_batches", valid_case)
        said = _micro_batches_of(spec)
        assert sorted(found) == sorted(said), f"a replica trains micro-batches of {found} natively, {said} are said"

    def test_rewards_have_the_frameworks_kl_penalty(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        found = self._asked("kl_rewards", valid_case, TOKENS)
        said = _kl_rewards_of(spec.objective, TOKENS)
        for token, native, ours in zip(TOKENS, found, said, strict=True):
            close = math.isclose(native, ours, rel_tol=NEAR, abs_tol=NEAR)
            assert close, f"{token}: KL takes {native:.6g} natively, {ours:.6g} by {spec.objective}"

    def test_completions_are_as_old_as_the_framework_lets_them_be(self, valid_case: ValidCase) -> None:
        staleness = self._spec(valid_case).staleness
        found = self._asked("staleness", valid_case)
        said = 0 if staleness.mode == "sync" else math.inf if staleness.maximum is None else staleness.maximum
        assert found == said, f"completions are up to {found} {staleness.unit} old natively, {said} are said"

    def test_truncated_completions_train_as_in_the_framework(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        lengths = [LENGTHS[place % len(LENGTHS)] for place in range(2 * spec.rollout.completions_per_prompt)]
        truncated = [place % 3 == 0 for place in range(len(lengths))]
        found = self._asked("truncated", valid_case, lengths, truncated)
        rule = spec.rollout.truncated_completions
        cut = {"mask": 0, "drop": None}
        said = [cut[rule] if off and rule != "keep" else lengths[place] for place, off in enumerate(truncated)]
        assert found == said, f"completions of {lengths} tokens train {found} natively, {said} as {rule} is said"

    def test_tokens_are_corrected_towards_the_sampler_as_in_the_framework(self, valid_case: ValidCase) -> None:
        spec = self._spec(valid_case)
        found = self._asked("corrections", valid_case, SAMPLED)
        said = _factors_of(spec.objective.sampler_correction)
        what = f"corrections towards the sampler ({spec.objective.sampler_correction} is said)"
        _alike(what, _flat(found), _flat(said))

    @classmethod
    def _is_filled(cls, law: str) -> bool:
        name = LAWS[law].method
        return getattr(cls, name) is not getattr(EvidenceContract, name)

    def _spec(self, case: ValidCase) -> Spec:
        return spec_of(self._valid(case))


def _dataset_sizes(spec: Spec) -> Iterator[int]:
    """Prompts of a dataset: whole rollouts, and, where that is allowed, a remainder."""
    prompts = spec.rollout.prompts_per_rollout
    if prompts is None:
        vacuous("rollout.prompts_per_rollout is None: prompts are streamed")
    yield 4 * prompts
    if prompts > 1 and spec.order.last_rollout != "error":
        yield 3 * prompts + (prompts + 1) // 2


def _planned(spec: Spec, dataset_size: int) -> Plan:
    """The plan, whose sizes do not wait for a seed."""
    try:
        return plan_of(spec if spec.order.seed is not None else spec.replace(**{"order.seed": 0}), dataset_size)
    except PlanError as refused:
        return vacuous(f"the specification leaves it open: {refused}")


def _unfiltered(spec: Spec) -> Spec:
    """The run in which every group is kept, and none comes late: its prompts are the candidates, whatever rewards and
    timing make of them."""
    kept = {"rollout.group_filter": "none", "staleness.mode": "sync", "staleness.maximum": 0}
    return spec.replace(**kept)


def _rollouts_of_two_epochs(plan: Plan) -> int:
    return next(index for index in itertools.count() if plan.rollout(index).epoch >= 2)


def _epochs(rollouts: Sequence[Sequence[int]], plan: Plan) -> list[tuple[int, ...]]:
    """The prompts of each of two epochs, in the order in which they come."""
    if plan.rollouts_per_epoch is None:  # rollouts wrap around epochs
        stream = _flat(rollouts)
        return [tuple(stream[at : at + plan.dataset_size]) for at in range(0, 2 * plan.dataset_size, plan.dataset_size)]
    whole = plan.rollouts_per_epoch
    return [tuple(_flat(rollouts[at : at + whole])) for at in range(0, 2 * whole, whole)]


def _steps_of(spec: Spec) -> list[int]:
    """The completions of each step of the first rollout."""
    size = next(_dataset_sizes(spec))
    steps = _planned(spec, size).steps_using(0)
    return [sum(member.rollout == 0 for member in step.members) for step in steps]


def _micro_batches_of(spec: Spec) -> list[int]:
    """The micro-batches of the first optimizer step on one replica."""
    if spec.micro_batch.tokens_per_device is not None:
        vacuous("micro_batch.tokens_per_device: lengths decide how many completions a micro-batch has")
    share = _steps_of(spec)[0] / spec.topology.data_parallel_size
    if share.denominator > 1:
        vacuous(f"a replica's share of a step is {float(share):.4g} completions")
    size = spec.micro_batch.completions_per_device or int(share)
    return [min(size, int(share) - begun) for begun in range(0, int(share), size)]


def _kl_rewards_of(objective: Objective, tokens: Sequence[Token]) -> list[float]:
    """The KL penalty of each token's reward, by the formulas of the estimators."""
    if objective.kl_placement != "reward" or not objective.kl_coefficient:
        return [0.0] * len(tokens)
    try:
        import torch
    except ImportError:
        return vacuous("the estimates of KL need torch")
    from batchbridge.kit.objectives import kl_losses

    old, reference = (
        torch.tensor([[getattr(token, name)] for token in tokens], dtype=torch.float64) for name in ("old", "reference")
    )
    in_loss = dataclasses.replace(objective, kl_placement="loss")
    try:
        penalty = kl_losses(in_loss, old, old, reference, torch.ones_like(old))
    except ValueError as refused:
        return vacuous(str(refused))
    assert penalty is not None
    return [-float(one) for one in penalty[:, 0]]


def _factors_of(correction: str | None) -> list[list[float]]:
    """The factor of each token's loss of `SAMPLED`."""
    if correction is None:
        return [[1.0] * len(completion) for completion in SAMPLED]
    read = CORRECTION.fullmatch(correction)
    if read is None:
        return vacuous(f"objective.sampler_correction = {correction}: no formula of it is here")
    low, high = (default if said == "-" else float(said) for said, default in ((read[3], 0.0), (read[4], math.inf)))
    factors = []
    for completion in SAMPLED:
        apart = [before - sampled for before, sampled in completion]
        ratios = [math.exp(sum(apart) if read[1] == "sequence" else one) for one in apart]
        masked = read[2] == "mask"
        factors.append([float(low <= one <= high) * one if masked else min(max(one, low), high) for one in ratios])
    return factors


def _gradients_of(spec: Spec, tokens: Sequence[Token], *, alone: bool = True) -> list[float]:
    """The gradient of each token's loss, each a completion of its own, or of the mean over those of one completion: by
    the oracle, which is no adapter's code."""
    try:
        import torch
    except ImportError:
        return vacuous("the oracle of gradients needs torch")
    from batchbridge.testing.oracle import token_losses

    found: list[float] = []
    for together in [[token] for token in tokens] if alone else [tokens]:
        new, old, reference = (
            torch.tensor([getattr(token, name) for token in together], dtype=torch.float64)
            for name in ("logprob", "old", "reference")
        )
        new.requires_grad_()
        try:
            losses = token_losses(spec.objective, new, old, reference, torch.ones_like(old), together[0].advantage)
        except ValueError as refused:
            return vacuous(str(refused))
        (gradient,) = torch.autograd.grad(losses.mean(), [new])
        found += gradient.tolist()
    return found


def _flat(groups: Iterable[Iterable[Any]]) -> list[Any]:
    return [one for group in groups for one in group]


def _alike(what: str, found: Sequence[float], said: Sequence[float]) -> None:
    """Fails where one of two lists has another number in it."""
    largest = max(map(abs, said), default=0.0)
    pairs = enumerate(zip(found, said, strict=True))
    off = [place for place, (one, other) in pairs if abs(one - other) > NEAR * largest]
    numbers = "; ".join(f"completion {place}: {found[place]:.6g} natively, {said[place]:.6g} said" for place in off[:4])
    assert not off, f"{what}: {len(off)} of {len(said)} differ: {numbers}"
