"""What `test_gradients_openrlhf` runs, one process per rank: OpenRLHF's real `ActorPPOTrainer` and DeepSpeed on gloo.

    torchrun --nproc_per_node 2 gradients.py FOLDER

Rank 0 leaves what it measured in FOLDER/measured.pt; the comparing process asserts. Float32 and SGD, which OpenRLHF
does not offer, are injected.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["BATCHBRIDGE_OPTIMIZER"] = "sgd"

import torch

from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import actor_trainer, experience, full_gradient, save_policy

torch.set_num_threads(1)

from tampering import LOSSES, WAYS, Run

from batchbridge import unwrap, wrap
from batchbridge.contract.reading import Mode
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import (
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
)
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.testing.oracle import Sample, advantages, double, logprobs, relative_error, step_gradient
from batchbridge.testing.snapshots import watched
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_openrlhf.engine import KL_COEFFICIENT, install, remove
from batchbridge_openrlhf.inputs import SENT, mark_sent
from batchbridge_openrlhf.turns import IDENTITY

PROMPTS, GROUP, STEP_SIZE = 6, 4, 5
SPLITS = {
    **{f"fixed {size}": MicroBatch(completions_per_device=size) for size in (1, 2, 8)},
    **{f"budget {tokens}": MicroBatch(tokens_per_device=tokens, cap="soft") for tokens in (24, 60)},
}
SHARED = {
    "actor.adam.lr": 0.0,
    "actor.adam.weight_decay": 0.0,
    "actor.max_norm": 0.0,
    "actor.lr_scheduler": "constant",
    "actor.lr_warmup_ratio": 0.0,
    "rollout.batch_size": 3,
    "rollout.n_samples_per_prompt": GROUP,
    "train.batch_size": 6,
    "train.max_tokens_per_gpu": 24,
    "algo.kl.init_coef": 0.1,
    "algo.advantage.estimator": "group_norm",
    "train.seed": 5,
}
TOKENS = LossTerm(aggregation="token_mean")
SEQUENCES = LossTerm(aggregation="sequence_mean", count_empty=False)
EVERY = LossTerm(aggregation="sequence_mean")
PPO = Objective(
    surrogate="ppo", ratio_level="token", clip_low=0.2, clip_high=0.2, dual_clip=None, old_logprobs="rollout_start"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One objective with its policy term; KL and entropy are means over the step's tokens always."""

    name: str
    term: LossTerm
    objective: Objective = PPO
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of the arguments, beside the loss's own."""

    @property
    def coefficient(self) -> float:
        return self.objective.kl_coefficient or 0.0

    @property
    def loss(self) -> dict[str, Any]:
        gspo = self.objective.ratio_level == "sequence"
        return {
            "loss.token_level_loss": self.term.aggregation == "token_mean",
            "loss.policy_loss_type": "gspo" if gspo else "ppo",
            "loss.dual_clip": self.objective.dual_clip,
            **self.settings,
        }


def _kl(estimator: str) -> dict[str, Any]:
    return {"kl_placement": "loss", "kl_coefficient": 0.1, "kl_estimator": estimator}


ENTROPY = 0.05
CASES = {
    case.name: case
    for case in (
        Case("token_mean", TOKENS),
        Case("sequence_mean", SEQUENCES),
        Case("sequence_mean, empty ones counted", EVERY),
        Case("dual clip", TOKENS, dataclasses.replace(PPO, dual_clip=1.5)),
        Case("gspo", SEQUENCES, dataclasses.replace(PPO, ratio_level="sequence")),
        *(
            Case(
                f"{term.aggregation}, {estimator} and entropy",
                term,
                dataclasses.replace(PPO, entropy_coefficient=ENTROPY, **_kl(estimator)),
                {"algo.kl.use_loss": True, "algo.kl.estimator": estimator, "actor.entropy_coef": ENTROPY},
            )
            for term, estimator in ((TOKENS, "k3"), (SEQUENCES, "k2"))
        ),
    )
}
EVERYWHERE = ("token_mean", "sequence_mean, k2 and entropy")
TRAINERS: tuple[tuple[int, bool, tuple[str, ...], tuple[str, ...]], ...] = (
    # ZeRO stage, the trainer's own dynamic batches, splits, cases
    (2, False, ("fixed 1", "fixed 8", "budget 24"), tuple(CASES)),
    (2, True, ("fixed 2", "budget 24", "budget 60"), EVERYWHERE),
    (1, True, ("budget 24",), EVERYWHERE),
    (3, True, ("budget 24",), EVERYWHERE),
    (1, False, ("fixed 2",), EVERYWHERE),
    (3, False, ("fixed 2",), EVERYWHERE),
)


def spec_of(case: Case, split: str) -> Spec:
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=3, completions_per_prompt=GROUP),
        optimizer_step=OptimizerStep(completions_per_step=STEP_SIZE),
        micro_batch=SPLITS[split],
        loss=Loss(policy=case.term, kl=TOKENS, entropy=TOKENS),
        horizon=Horizon(epochs=1.0),
        order=Order(seed=5, last_optimizer_step="short"),
        objective=case.objective,
    )


class Bench:
    """The completions and the oracle's answers."""

    def __init__(self, folder: Path, policy: Path) -> None:
        self.folder, self.saved = folder, policy
        self.script, self.tokenizer = ScriptedRollouts(), tiny_tokenizer()
        self.policy = tiny_policy()
        self.behind, self.reference = (
            _moved(self.policy, 1, 0.015),
            _moved(self.policy, 2, 0.01),
        )  # nearer than the KL clamp
        self.exact, self.rough = double(self.policy), copy.deepcopy(self.policy).eval()
        self.gradients: list[torch.Tensor] = []
        self.answers: dict[Any, tuple[torch.Tensor, float, float]] = {}

    def trainer(self, zero: int, dynamic: bool) -> Any:
        """One that keeps the gradient of every step that it applies."""
        settings = {**SHARED, "ds.zero_stage": zero, "train.dynamic_batch_enable": dynamic}
        made = actor_trainer(self.saved, steps=10, dataset_size=PROMPTS, **settings)
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        engine = made.actor.model

        def keep(*arguments: Any, **options: Any) -> None:
            if engine.is_gradient_accumulation_boundary():
                self.gradients.append(full_gradient(made))

        engine.step = watched(engine.step, keep)
        return made

    def sample(self, prompt: int, number: int) -> Sample:
        rewards = [self.script.reward(prompt, other) for other in range(GROUP)]

        values = advantages(rewards, GROUP, _rule())
        made = Sample(
            prompt=self.tokenizer(self.script.prompt(prompt))["input_ids"],
            completion=self.script.completion(prompt, number),
            loss_mask=self.script.loss_mask(prompt, number),
            group=prompt,
            advantage=values[number],
        )
        with torch.no_grad():
            return dataclasses.replace(made, old_logprobs=logprobs(self.behind, made))

    def fill(
        self,
        trainer: Any,
        plan: Plan,
        rollout: int,
        *,
        owner_of: Callable[[int], int] | None = None,
        silent: bool = False,
    ) -> None:
        """This rank's share of a rollout in the replay buffer: of rows that `owner_of` gives it; else as unevenly as
        can be."""
        for position, prompt in enumerate(plan.rollout(rollout).prompts):
            for number in range(GROUP):
                row = position * GROUP + number
                if (owner_of or self.unevenly)(row) != self.rank:
                    continue
                sample = self.sample(prompt, number)
                if silent:
                    sample = dataclasses.replace(sample, loss_mask=[0] * len(sample.completion))
                with torch.no_grad():
                    reference = logprobs(self.reference, sample)
                made = experience(sample, (rollout, prompt, position, number), reference_logprobs=reference)
                mark_sent(made)
                trainer.replay_buffer.append(made)

    def unevenly(self, row: int) -> int:
        """The first rank has four fifths of a rollout's rows."""
        return 0 if row % 5 else self.ranks - 1

    def natively(self, row: int) -> int:
        """Upstream cuts a rollout into blocks."""
        return row * self.ranks // (3 * GROUP)

    def by_steps(self, row: int) -> int:
        """Native steps of 6 rows, that take a rank's rows in their order, have the rollout's rows in theirs."""
        return row % 6 * self.ranks // 6

    def run(self, trainer: Any, coefficient: float) -> None:
        self.gradients.clear()
        trainer.ppo_train(coefficient)
        trainer.replay_buffer.clear()

    def expected(self, case: Case, members: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, float, float]:
        """The oracle's gradient of a step over (prompt, sample), the same code's error in float32, and the share of
        clipped tokens."""
        key = case.name, tuple(sorted(members))
        if key not in self.answers:
            samples = [self.sample(*member) for member in sorted(members)]
            exact, rough = (self.oracle(model, case, samples) for model in (self.exact, self.rough))
            self.answers[key] = exact, relative_error(rough, exact), self.clipped(samples, case.objective)
        return self.answers[key]

    def oracle(
        self, model: Any, case: Case, samples: Sequence[Sample], weights: Sequence[float] | None = None
    ) -> torch.Tensor:
        """The policy term by `weights` (default: the case's own), KL and entropy as means over tokens."""
        plain = dataclasses.replace(case.objective, kl_placement="none", kl_coefficient=0.0)
        found = step_gradient(model, samples, term=case.term, objective=plain, weights=weights)
        if case.coefficient:
            reference = double(self.reference) if model is self.exact else self.reference
            found = found + step_gradient(
                model,
                samples,
                term=TOKENS,
                objective=case.objective,
                reference=reference,
                surrogate=lambda new, old, advantage: torch.zeros_like(new),
            )
        if case.objective.entropy_coefficient:
            found = found - case.objective.entropy_coefficient * entropy_gradient(model, samples)
        return found

    def clipped(self, samples: Sequence[Sample], objective: Objective) -> float:
        clipped, total = 0, 0
        for sample in samples:
            with torch.no_grad():
                new = logprobs(self.policy, sample)
            assert sample.old_logprobs is not None
            kl = new - sample.old_logprobs
            ratio = (kl.mean().expand_as(kl) if objective.ratio_level == "sequence" else kl).exp()
            outside = ratio > 1.2 if sample.advantage > 0 else ratio < 0.8
            clipped += int((outside & torch.tensor(sample.loss_mask).bool()).sum())
            total += sum(sample.loss_mask)
        return clipped / max(total, 1)

    def orders(self, spec: Spec, mode: Any = "enforce", **more: Any) -> Orders:
        version = importlib.metadata.version("openrlhf")
        common = {"dataset_size": PROMPTS, "ledger": None, "framework_version": version, "start_id": "test"}
        return Orders(**{"spec": spec, "planned": mode != "observe", "mode": mode, **common, **more})


def _rule() -> Any:
    from batchbridge.meaning.spec import Advantage

    return Advantage(baseline="group_mean", scale="group", epsilon=1e-9, ddof=1)


def _moved(policy: Any, seed: int, scale: float) -> Any:
    """A copy of `policy` with noise on every parameter."""
    twin = copy.deepcopy(policy).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return twin


def entropy_gradient(model: Any, samples: Sequence[Sample]) -> torch.Tensor:
    """The gradient of the mean, over the samples' trained tokens, of the policy's entropy."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    total = sum(sum(sample.loss_mask) for sample in samples)
    for sample in samples:
        ids = torch.tensor([[*sample.prompt, *sample.completion]])
        spread = torch.log_softmax(model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1], dim=-1)
        mask = torch.tensor(list(sample.loss_mask), dtype=spread.dtype)
        ((-(spread.exp() * spread).sum(-1) * mask).sum() / total).backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone() for p in parameters])


def wrapped(bench: Bench, trainer: Any, zero: int, dynamic: bool, splits: Any, cases: Any) -> list[dict[str, Any]]:
    """Every case and split, step by step, two rollouts."""
    results = []
    for name in cases:
        case = CASES[name]
        for split in splits:
            spec = spec_of(case, split)
            plan = Plan(spec, PROMPTS)
            install(trainer, bench.orders(spec, settings={**case.loss, KL_COEFFICIENT: case.coefficient}))
            found = []
            for rollout in range(2):
                bench.fill(trainer, plan, rollout)
                bench.run(trainer, 0.0)
                found += bench.gradients
            remove(trainer)
            assert len(found) == plan.total_optimizer_steps == 6, len(found)
            for index, gradient in enumerate(found):
                expected, floor, clipped = bench.expected(
                    case, [(member.prompt, member.sample) for member in plan.step(index).members]
                )
                results.append(
                    {
                        "case": name,
                        "trainer": f"ZeRO-{zero}{', dynamic' if dynamic else ''}",
                        "split": split,
                        "step": index,
                        "error": relative_error(gradient, expected),
                        "floor": floor,
                        "clipped": clipped,
                        "norm": float(expected.norm()),
                    }
                )
    return results


def natively(bench: Bench, trainer: Any, zero: int, dynamic: bool) -> dict[str, Any]:
    """The same trainer, observed: its first step's error over the bar, by the canonical weights of the rows that it
    trained and by the weights that the ledger says."""
    case, folder = CASES["token_mean"], bench.folder / f"native-{zero}-{dynamic}"
    spec = spec_of(case, "fixed 2")
    said = verified(bench, trainer, case) if dynamic else ""
    bench.fill(trainer, Plan(spec, PROMPTS), 0, owner_of=bench.natively)
    for item in trainer.replay_buffer.items:
        for name in (IDENTITY, SENT):  # upstream would log them
            del item.info[name]
    torch.manual_seed(3)  # of the loader's shuffle
    bench.run(trainer, 0.0)
    alone = list(bench.gradients)
    install(trainer, bench.orders(spec, "observe", ledger=folder))
    bench.fill(trainer, Plan(spec, PROMPTS), 0, owner_of=bench.natively)
    torch.manual_seed(3)
    bench.run(trainer, 0.0)
    remove(trainer)
    untouched, count = all(map(torch.equal, alone, bench.gradients)), len(bench.gradients)
    unread = unreadable(bench, trainer, spec, folder.with_name(f"{folder.name}-unread"), alone)
    torch.distributed.barrier()
    gradient, record = bench.gradients[0], next(iter(read_steps(folder)))
    samples = [bench.sample(*member) for member in zip(record["prompt"], record["sample"], strict=True)]
    weights = [float(w) for w in token_weights(TOKENS, [Row(tokens=sum(s.loss_mask)) for s in samples])]
    canonical = bench.oracle(bench.exact, case, samples, weights)
    # A weight that nothing shows is one of a completion without advantage, whose gradient is zero.
    recorded = bench.oracle(bench.exact, case, samples, [weight or 0.0 for weight in record["weights"]])
    floor = relative_error(bench.oracle(bench.rough, case, samples, weights), canonical)
    bar = max(1e-6, 3 * floor)
    return {
        "canonical": relative_error(gradient, canonical) / bar,
        "recorded": relative_error(gradient, recorded) / bar,
        "steps": count,
        "untouched": untouched,
        "unread": unread,
        "verified": said,
    }


def unreadable(bench: Bench, trainer: Any, spec: Spec, folder: Path, alone: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The same run once more, where the last rank does not find a field of its second step: whether its gradients are
    those without us, and what the ledger says."""
    install(trainer, bench.orders(spec, "observe", ledger=folder))
    layer = trainer.batchbridge_engine
    told = layer._told

    def lacking(item: Any, prompt_tokens: int) -> dict[str, Any]:
        if bench.gradients and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            raise KeyError("a field that is not there")
        return told(item, prompt_tokens)

    layer._told = lacking
    bench.fill(trainer, Plan(spec, PROMPTS), 0, owner_of=bench.natively)
    torch.manual_seed(3)
    bench.run(trainer, 0.0)
    remove(trainer)
    torch.distributed.barrier()
    steps = read_steps(folder)
    return {
        "untouched": len(alone) == len(bench.gradients) and all(map(torch.equal, alone, bench.gradients)),
        "seen": len(list(steps)),
        "incomplete": steps.incomplete,
    }


def verified(bench: Bench, trainer: Any, case: Case) -> str:
    """What mode "verify" says of a native run whose steps have the plan's members."""
    spec = spec_of(case, "fixed 2").replace(**{"optimizer_step.completions_per_step": 6})
    install(trainer, bench.orders(spec, "verify"))
    bench.fill(trainer, Plan(spec, PROMPTS), 0, owner_of=bench.by_steps)
    try:
        bench.run(trainer, 0.0)
    except BatchDrift as drift:
        return str(drift)
    finally:
        clean(trainer)
    return "trained to its end"


def clean(trainer: Any) -> None:
    """After a run that a `BatchDrift` ended."""
    remove(trainer)
    trainer.replay_buffer.clear()
    trainer.actor.model.optimizer.zero_grad()


def refused(bench: Bench, trainer: Any) -> dict[str, str]:
    """What wrapping says of losses that weigh otherwise on the last rank, and whether it leaves anything behind."""
    said = {}
    for name, alter in LOSSES.items():
        patches = Patches()
        if bench.rank == bench.ranks - 1:
            alter(trainer, patches)
        parts = (trainer, trainer.strategy, trainer.replay_buffer, trainer.actor, trainer.actor_loss_fn)
        before = [dict(vars(part)) for part in parts]
        try:
            try:
                wrap(trainer)
            except CannotAttach as error:
                if "unproven_code" not in error.reasons:
                    raise
                # On every rank, whichever has it: code that is not known, which is measured where it is allowed.
                wrap(trainer, allow=["unproven_code"])
            said[name] = "wrapped"
        except CannotAttach as error:
            same = [dict(vars(part)) for part in parts] == before
            reason = error.reasons.get("weight_probe") or error.reasons.get("own_term")
            said[name] = f"{reason}{'' if same else '; changed'}"
        unwrap(trainer)
        patches.undo()
    return said


def tampered(bench: Bench, trainer: Any, mode: Mode) -> dict[str, dict[str, Any]]:
    """Of each way to tamper with step 3: what this rank was told, where, and how many updates were applied.

    Verified, the native run's steps of 6 completions have the plan's members, and every completion has a token: a
    micro-batch without one ends a native run.
    """
    spec, found, script = spec_of(CASES["token_mean"], "fixed 2"), {}, bench.script
    if mode == "verify":
        spec = spec.replace(**{"optimizer_step.completions_per_step": 6})
        bench.script = dataclasses.replace(script, empty=frozenset())
    owner_of = bench.by_steps if mode == "verify" else None
    plan, applied, engine = Plan(spec, PROMPTS), set(), trainer.actor.model
    ways = {**{name: way for name, (way, _) in WAYS.items()}, "nobody": lambda run: None}
    counting = engine.optimizer.optimizer.register_step_pre_hook(lambda *_: applied.add(engine.global_steps))
    for name, way in ways.items():
        engine.global_steps = 0  # a run of its own
        install(trainer, bench.orders(spec, mode))
        patches = Patches()
        way(Run.of(trainer, patches, mine=bench.rank == bench.ranks - 1))
        applied.clear()
        told = {"step": -1, "aspect": "", "detail": "trained to its end"}
        try:
            for rollout in range(2):
                bench.fill(trainer, plan, rollout, owner_of=owner_of)
                bench.run(trainer, 0.0)
        except BatchDrift as drift:
            told = {"step": drift.step, "aspect": drift.aspect, "detail": str(drift)}
        finally:
            patches.undo()
            clean(trainer)
        found[name] = {**told, "applied": len(applied)}
    counting.remove()
    bench.script = script
    everyone: list[Any] = [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, found)
    return {name: {"ranks": [one[name] for one in everyone]} for name in ways}


def strange(bench: Bench, trainer: Any) -> list[str]:
    """What a run says, one of whose weights is another object than the one that the optimizer was built with; and how
    many updates were applied."""
    spec, applied = spec_of(CASES["token_mean"], "fixed 2"), []
    counting = trainer.actor.model.optimizer.optimizer.register_step_pre_hook(lambda *_: applied.append(True))
    layer = next(one for one in trainer.actor.model.module.modules() if isinstance(one, torch.nn.Linear))
    own, layer.weight = layer.weight, torch.nn.Parameter(layer.weight.detach().clone())
    install(trainer, bench.orders(spec))
    bench.fill(trainer, Plan(spec, PROMPTS), 0)
    try:
        bench.run(trainer, 0.0)
        said = "trained to its end"
    except BatchDrift as drift:
        said = str(drift)
    finally:
        clean(trainer)
        layer.weight = own
        counting.remove()
    return [said, f"{len(applied)} applied"]


def drifts(bench: Bench, trainer: Any) -> list[str]:
    """What a step says that is not the plan's: a rollout's other prompts, then weights that something has changed."""
    spec = spec_of(CASES["token_mean"], "fixed 2")
    plan, said, applied = Plan(spec, PROMPTS), [], []
    counting = trainer.actor.model.optimizer.optimizer.register_step_pre_hook(lambda *_: applied.append(True))
    for change in ("members", "weights"):
        install(trainer, bench.orders(spec))
        bench.fill(trainer, plan, 0)
        buffer = trainer.replay_buffer
        if change == "members":
            for item in buffer.items:
                item.info["batchbridge"][0] = 1  # they say that they are the second rollout's
        else:
            native = buffer.setup_dynamic_batch

            def doubled(strategy: Any, native: Any = native, buffer: Any = buffer) -> None:
                native(strategy)
                buffer.dynamic_batch_num_tokens = [2 * count for count in buffer.dynamic_batch_num_tokens]

            buffer.setup_dynamic_batch = doubled
        try:
            trainer.ppo_train(0.0)
        except BatchDrift as drift:
            said.append(str(drift))
        if change == "weights":
            buffer.setup_dynamic_batch = native
        clean(trainer)
    counting.remove()
    return [*said, f"{len(applied)} applied"]


def empty(bench: Bench, trainer: Any) -> list[int]:
    """A rollout without a token, then one with tokens: no update, and the ledger says so. Gradients of each."""
    spec = spec_of(CASES["token_mean"], "fixed 2")
    plan = Plan(spec, PROMPTS)
    install(trainer, bench.orders(spec, ledger=bench.folder / "empty_ledger"))
    counts = []
    for rollout in range(2):
        bench.fill(trainer, plan, rollout, silent=rollout == 0)
        bench.run(trainer, 0.0)
        counts.append(len(bench.gradients))
    remove(trainer)
    return counts


def by_wrap(bench: Bench, trainer: Any) -> dict[str, Any]:
    """The object API on the trainer's own configuration, in another mode, and with a schedule of another length."""
    before = {name: value for part in (trainer, trainer.replay_buffer) for name, value in vars(part).items()}
    assert wrap(trainer, ledger=bench.folder / "wrap_ledger") is trainer
    plan, report = trainer.batchbridge.plan, trainer.batchbridge.report()
    for rollout in range(2):
        bench.fill(trainer, plan, rollout)
        bench.run(trainer, 0.0)
    unwrap(trainer)
    after = {name: value for part in (trainer, trainer.replay_buffer) for name, value in vars(part).items()}
    native = trainer.actor_scheduler.lr_lambdas
    trainer.actor_scheduler.lr_lambdas = [functools.partial(len, num_training_steps=9)]
    try:
        wrap(trainer)
        clock = ""
    except CannotAttach as refused:
        clock = str(refused)
    trainer.actor_scheduler.lr_lambdas = native
    wrap(trainer, mode="verify")
    bench.fill(trainer, plan, 0, owner_of=bench.natively)
    try:
        bench.run(trainer, 0.0)
        drift = ""
    except BatchDrift as departed:
        drift = departed.aspect
    trainer.replay_buffer.clear()
    unwrap(trainer)
    trainer.actor.model.optimizer.zero_grad()
    changed = [name for name in before if after.get(name) is not before[name] and not name.startswith("dynamic_")]
    return {
        "report": report,
        "changed": sorted({*changed, *(after.keys() - before.keys())}),
        "clock": clock,
        "drift": drift,
        "seed": plan.spec.order.seed,
    }


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Bench(folder, policy)
    found: dict[str, Any] = {"wrapped": [], "natively": {}}
    for zero, dynamic, splits, cases in TRAINERS:
        trainer = bench.trainer(zero, dynamic)
        found["natively"][f"ZeRO-{zero}{', dynamic' if dynamic else ''}"] = natively(bench, trainer, zero, dynamic)
        found["wrapped"] += wrapped(bench, trainer, zero, dynamic, splits, cases)
        if (zero, dynamic) == (2, False):
            found["drifts"] = drifts(bench, trainer)
            found["strange"] = strange(bench, trainer)
            found["empty"] = empty(bench, trainer)
            found["wrap"] = by_wrap(bench, trainer)
            found["refused"] = refused(bench, trainer)
            found["tampered"] = {"enforce": tampered(bench, trainer, "enforce")}
        if (zero, dynamic) == (3, True):
            found["tampered"]["verify"] = tampered(bench, trainer, "verify")
        del trainer
    if bench.rank == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
