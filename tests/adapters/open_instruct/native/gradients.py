"""What `test_gradients_open_instruct` runs, one process per rank: the real learner and the real data preparation actor,
DeepSpeed on gloo, every optimizer step against the float64 oracle.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 gradients.py FOLDER

Rank 0 leaves what it measured in FOLDER/measured.json; oi_proofs.py says what is asked of it.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu

cpu.start()

import copy
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import GatheredParameters

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.ledger import read_steps
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Advantage, LossTerm, Spec, Staleness
from batchbridge.reading.read import read
from batchbridge.running.wrap import unwrap, wrap
from batchbridge.testing.oracle import Sample, advantages, double, logprobs, relative_error, step_gradient
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_on_cpu.open_instruct.job import SAMPLER_LOGPROB, Job, full_gradient, prepare
from batchbridge_on_cpu.steps import moved

PROMPTS, ROLLOUTS, GROUP, CONSTANT = 8, 2, 4, 24
RATES = {"token_mean": 0.012, "token_sum": 0.0001, "sequence_sum": 0.0012, "sequence_sum_over_constant": 0.03}
"""Of SGD: the second pass over a rollout is clipped here and there."""
SPLITS: Mapping[str, tuple[int, int]] = {"32 x 1": (32, 1), "48 x 2": (48, 2), "200 x 1": (200, 1)}
"""pack_length x per_device_train_batch_size."""
WHITENED = Advantage(baseline="group_mean", scale="group", epsilon=1e-4, ddof=1)


def _corrected(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """The clipped surrogate, times the clamped ratio towards the sampler."""
    ratio = (new - old).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.272) * advantage)
    return loss * (old - SAMPLER_LOGPROB).exp().clamp(max=2.0)


@dataclasses.dataclass(frozen=True)
class Case:
    """One objective. args: the trainer's. surrogate: the oracle's, where the schema has no words."""

    name: str
    aggregations: Sequence[str]
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    surrogate: Any = None
    splits: Sequence[str] = tuple(SPLITS)
    stage: int = 2
    changed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


ALL = ("token_mean", "token_sum", "sequence_sum", "sequence_sum_over_constant")
TWO = ("token_mean", "sequence_sum_over_constant")
KL = {"beta": 0.1, "load_ref_policy": True}
CASES = (
    Case("dapo", ALL),
    Case("dapo, ZeRO-0", TWO, splits=("32 x 1",), stage=0),
    Case("dapo, ZeRO-1", TWO, splits=("32 x 1",), stage=1),
    Case("dapo, ZeRO-3", TWO, splits=("32 x 1",), stage=3),
    Case("dapo, advantages by deviation", ("token_mean",), splits=("48 x 2",), changed={"advantage": WHITENED}),
    Case("dapo, k3", TWO, {**KL, "kl_estimator": 2}),
    Case("dapo, k2", TWO, {**KL, "kl_estimator": 1}, splits=("32 x 1",)),
    Case("dapo, k1", TWO, {**KL, "kl_estimator": 0}, splits=("32 x 1",)),
    Case("dapo, k1 times ratio", TWO, {**KL, "kl_estimator": 3}, splits=("32 x 1",)),
    Case("dapo, corrected", TWO, {"use_rho_correction": True}, _corrected, splits=("48 x 2",)),
    Case("cispo", TWO, {"loss_fn": "cispo"}, splits=("48 x 2",)),
)


class Bench:
    """One job at a time, its gradients, and the oracle's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.policy = folder, folder / "policy"
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.script, self.tokenizer = ScriptedRollouts(), tiny_tokenizer()
        self.shape = tiny_policy()
        self.gradients: list[torch.Tensor] = []
        self.weights: list[list[torch.Tensor]] = []

    @contextmanager
    def job(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
        prompts: int = PROMPTS,
        rollouts: int = ROLLOUTS,
        script: ScriptedRollouts | None = None,
        burst: int | None = None,
    ) -> Iterator[Job]:
        """A job whose optimizer steps are kept: `gradients`, and `weights` before each."""
        args = {"learning_rate": RATES["token_mean"], "num_epochs": 2, "lr_scheduler_type": "constant", **(args or {})}
        sizes = {"prompts": prompts, "rollouts": rollouts, "burst": burst}
        made = Job(self.policy, **sizes, settings=settings, args=args, script=script or self.script)
        engine = made.learner.model
        native, self.gradients, self.weights = engine._take_model_step, [], []

        def spy(*arguments: Any, **options: Any) -> Any:
            found = full_gradient(engine), values(engine)
            said = native(*arguments, **options)  # a step that is stopped is none
            self.gradients.append(found[0])
            self.weights.append(found[1])
            return said

        engine._take_model_step = spy
        if engine.get_global_grad_norm() is None and made.args.deepspeed_stage == 0:
            engine.get_global_grad_norm = lambda: float(self.gradients[-1].norm())  # float32 alone has none there
        if made.args.load_ref_policy:
            reference = moved(tiny_policy(), 2, 0.03)
            pairs = zip(made.learner.ref_policy.module.parameters(), reference.parameters(), strict=True)
            for parameter, other in pairs:  # of which ZeRO-3 has a part on each rank
                with torch.no_grad(), GatheredParameters([parameter], modifier_rank=0):
                    parameter.copy_(other)
        try:
            yield made
        finally:
            made.close()
            engine.destroy()

    def model(self, step: int) -> Any:
        """A policy with the weights before an optimizer step."""
        twin = copy.deepcopy(self.shape)
        with torch.no_grad():
            for parameter, value in zip(twin.parameters(), self.weights[step], strict=True):
                parameter.copy_(value)
        return twin.eval()

    def samples(self, members: Sequence[tuple[int, int]], rule: Advantage, old: Any = None) -> list[Sample]:
        """Completions (prompt, sample); old: the policy of the ratio's denominator, None: the current one."""
        found = []
        for prompt, sample in members:
            rewards = [self.script.reward(prompt, other) for other in range(GROUP)]
            made = Sample(
                prompt=self.tokenizer(self.script.prompt(prompt))["input_ids"],
                completion=self.script.completion(prompt, sample),
                loss_mask=self.script.loss_mask(prompt, sample),
                group=prompt,
                advantage=advantages(rewards, GROUP, rule)[sample],
            )
            if old is not None:
                with torch.no_grad():
                    made = dataclasses.replace(made, old_logprobs=logprobs(old, made))
            found.append(made)
        return found

    def oracle(self, spec: Spec, step: int, first: int, members: Sequence[tuple[int, int]], case: Case) -> Any:
        """(gradient, float32's own error, share of clipped tokens) of a step; first: that of its rollout's pass 0."""
        found: list[torch.Tensor] = []
        clipped = 0.0
        for exact in (True, False):
            change = double if exact else copy.deepcopy
            model, old = change(self.model(step)), change(self.model(first)) if step != first else None
            samples = self.samples(members, spec.advantage, old)
            reference = change(moved(tiny_policy(), 2, 0.03)) if spec.objective.kl_coefficient else None
            gradient = step_gradient(
                model,
                samples,
                term=spec.loss.policy,
                objective=spec.objective,
                reference=reference,
                surrogate=case.surrogate,
            )
            found.append(gradient)
            if exact:
                clipped = share_clipped(model, samples)
        return found[0], relative_error(found[1], found[0]), clipped


def share_clipped(model: Any, samples: Sequence[Sample]) -> float:
    clipped, total = 0, 0
    for sample in samples:
        with torch.no_grad():
            new = logprobs(model, sample)
        if sample.old_logprobs is None:
            continue
        ratio, mask = (new - sample.old_logprobs).exp(), torch.tensor(list(sample.loss_mask)).bool()
        outside = ratio > 1.272 if sample.advantage > 0 else ratio < 0.8
        clipped, total = clipped + int((outside & mask).sum()), total + int(mask.sum())
    return clipped / max(total, 1)


def values(engine: Any) -> list[torch.Tensor]:
    """Every parameter, whole."""
    from deepspeed.utils import safe_get_full_fp32_param

    return [
        (safe_get_full_fp32_param(one) if hasattr(one, "ds_id") else one).detach().float().clone()
        for one in engine.module.parameters()
    ]


def wanted(job: Job, aggregation: str, changed: Mapping[str, Any]) -> Spec:
    """What the job means, generated by the weights that it trains next unless `changed` says otherwise."""
    own = read(job.learner, framework="open_instruct").spec
    assert own is not None
    constant = CONSTANT if aggregation == "sequence_sum_over_constant" else None
    term = LossTerm(aggregation=aggregation, constant=constant)  # type: ignore[arg-type]  # one of ALL
    return own.replace(**{"staleness": Staleness(), "loss.policy": term, **changed})


def wrapped(bench: Bench, cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    results = []
    for case in cases:
        for split in case.splits:
            pack, rows = SPLITS[split]
            for aggregation in case.aggregations:
                settings = {"pack_length": pack}
                args = {"per_device_train_batch_size": rows, "deepspeed_stage": case.stage, **case.args}
                args["learning_rate"] = RATES[aggregation]
                with bench.job(settings=settings, args=args) as job:
                    spec = wanted(job, aggregation, case.changed)
                    plan = Plan(spec, PROMPTS)
                    ledger = bench.folder / f"ledger-{bench.ranks}"
                    shutil.rmtree(ledger, ignore_errors=True)
                    dist.barrier()
                    wrap(job.learner, like=spec, ledger=ledger)
                    for _ in range(ROLLOUTS):
                        job.train()
                    fillers = sum(
                        not pieces
                        for data in job.actor.prepared_data.values()
                        for batch in data
                        for part in batch.batchbridge.micro_batches
                        for pieces in part
                    )
                    for index in range(plan.total_optimizer_steps):
                        members = [(member.prompt, member.sample) for member in plan.step(index).members]
                        expected, floor, clipped = bench.oracle(spec, index, index // 2 * 2, members, case)
                        results.append(
                            {
                                "case": case.name,
                                "split": split,
                                "aggregation": aggregation,
                                "step": index,
                                "error": relative_error(bench.gradients[index], expected),
                                "floor": floor,
                                "clipped": clipped,
                                "norm": float(expected.norm()),
                                "fillers": fillers,
                            }
                        )
                    dist.barrier()
                    ended(job)
                    unwrap(job.learner)
                    norms = [step["gradient_norm"] for step in read_steps(ledger)]
                    assert len(norms) == plan.total_optimizer_steps
    return results


@dataclasses.dataclass(frozen=True)
class Taking:
    """A run in which rewards or timing decide something. settings: of the data preparation. flat: candidates whose
    rewards are equal. burst: see `Engine`. solves: whether prompts are solved, and left out from then on."""

    settings: Mapping[str, Any]
    aggregations: Sequence[str]
    flat: Sequence[int] = ()
    sync: bool = True
    burst: int | None = None
    solves: bool = False
    rollouts: int = ROLLOUTS

    @property
    def without(self) -> Taking:
        """The same, were nothing dropped or left out."""
        return dataclasses.replace(self, flat=(), solves=False)


DROPS = {"filter_zero_std_samples": True}
REPLACES = {**DROPS, "active_sampling": True, "async_steps": 2}
TAKING: Mapping[str, Taking] = {
    # Of the first rollout one group is dropped, of the second all three: it takes the next three.
    "dropped": Taking(DROPS, ("token_mean", "sequence_sum"), flat=(1, 3, 4, 5)),
    "dropped, ahead": Taking(DROPS, ("token_mean",), flat=(1, 3, 4, 5), sync=False),
    "replaced": Taking(REPLACES, ("token_mean",), flat=(1, 3, 4, 6), burst=1),
    "replaced, ahead": Taking(REPLACES, ("sequence_sum_over_constant",), flat=(1, 3, 4, 6), sync=False, burst=1),
    "ahead": Taking({}, ("token_mean",), sync=False),
    # Into the third epoch; two prompts of eight are solved in the first.
    "solved": Taking(DROPS, ("token_mean",), flat=(1,), burst=1, solves=True, rollouts=6),
    "solved, replaced, ahead": Taking(
        REPLACES, ("sequence_sum",), flat=(1,), sync=False, burst=1, solves=True, rollouts=5
    ),
}
SOLVES = {"no_resampling_pass_rate": 0.55, "verification_reward": 6.0}
"""Solved is who earns 3.3 of 6 on average."""


ORDER = CandidatePlan(
    Spec.from_dict(
        {
            "topology": {"world_size": 1},
            "rollout": {"prompts_per_rollout": 3, "completions_per_prompt": GROUP, "group_filter": "custom"},
            "optimizer_step": {"completions_per_step": 3 * GROUP},
            "loss": {"policy": {"aggregation": "token_mean"}},
            "horizon": {"rollouts": ROLLOUTS},
            "order": {"seed": 7},
        }
    ),
    PROMPTS,
).candidates(0, 3 * PROMPTS)
"""The prompts in the order in which the jobs here, whose seed is 7, ask for them."""


def kept(taking: Taking) -> list[list[int]]:
    """The prompts that each rollout trains, by the words of docs/open_instruct.md."""
    flat = {ORDER[number] for number in taking.flat}
    script, solved = ScriptedRollouts(flat=frozenset(flat)), set[int]()

    def left_in() -> Iterator[int]:
        for prompt in ORDER:
            if prompt not in solved:
                if taking.solves and sum(script.reward(prompt, sample) for sample in range(GROUP)) >= 3.3 * GROUP:
                    solved.add(prompt)
                yield prompt

    found, coming, size = list[list[int]](), left_in(), 3
    while len(found) < taking.rollouts:
        left: list[int] = []
        if "active_sampling" in taking.settings:
            while len(left) < size:
                left += [prompt for prompt in (next(coming),) if prompt not in flat]
        while not left:
            left = [prompt for prompt in [next(coming) for _ in range(size)] if prompt not in flat]
        found.append(left)
    return found


def taken(bench: Bench) -> list[dict[str, Any]]:
    """Where rewards decide what a rollout trains, or weights are older: step by step."""
    results = []
    for name, taking in TAKING.items():
        prompts, script = kept(taking), ScriptedRollouts(flat=frozenset(ORDER[number] for number in taking.flat))
        otherwise = kept(taking.without)
        for aggregation in taking.aggregations:
            args = {"learning_rate": RATES[aggregation]}
            settings = {"pack_length": 32, **taking.settings, **(SOLVES if taking.solves else {})}
            more = {"rollouts": taking.rollouts, "burst": taking.burst}
            with bench.job(settings=settings, args=args, script=script, **more) as job:
                own = read(job.learner, framework="open_instruct").spec
                assert own is not None
                spec = wanted(job, aggregation, {} if taking.sync else {"staleness": own.staleness})
                ledger = bench.folder / f"taken-{bench.ranks}"
                shutil.rmtree(ledger, ignore_errors=True)
                dist.barrier()
                wrap(job.learner, like=spec, ledger=ledger)
                for _ in range(taking.rollouts):
                    job.train()
                dist.barrier()
                ended(job)
                unwrap(job.learner)
                for index, record in enumerate(read_steps(ledger)):
                    members = [(prompt, sample) for prompt in prompts[index // 2] for sample in range(GROUP)]
                    also = otherwise[index // 2] if taking.solves else {*prompts[index // 2], *script.flat}
                    every = [(prompt, sample) for prompt in also for sample in range(GROUP)]
                    expected, floor, _ = bench.oracle(spec, index, index // 2 * 2, members, CASES[0])
                    with_all, _, _ = bench.oracle(spec, index, index // 2 * 2, every, CASES[0])
                    results.append(
                        {
                            "case": name,
                            "aggregation": aggregation,
                            "step": index,
                            "error": relative_error(bench.gradients[index], expected),
                            "error_with_dropped": relative_error(bench.gradients[index], with_all),
                            "floor": floor,
                            "norm": float(expected.norm()),
                            "otherwise": sorted(every),
                            "expected": sorted(members),
                            "trained": sorted(zip(record["prompt"], record["sample"], strict=True)),
                            "made_at": sorted({*record["generated_at_step"]}),
                        }
                    )
    return results


def rubrics(bench: Bench) -> list[dict[str, Any]]:
    """Where what later rollouts are scored by is written while the run goes on (apply_evolving_rubric_reward), by a
    scripted judge: step by step, and what prompts that came again were to be scored by."""
    from open_instruct.rubrics import evolving_rubric_step as module

    native, results = module._generate_instance_wise_evolving_rubrics, []

    async def judge(*, responses: Sequence[str], num_samples_per_prompt_rollout: int, **more: Any) -> Any:
        count = len(responses) // num_samples_per_prompt_rollout
        said = {"positive_rubrics": [{"title": "seen", "description": "it came before"}], "negative_rubrics": []}
        return [said] * count, [num_samples_per_prompt_rollout] * count

    module._generate_instance_wise_evolving_rubrics = judge
    rollouts = PROMPTS // 3 + 2  # into the second epoch
    more = {"rollouts": rollouts, "args": {"num_epochs": 1}}
    try:
        with bench.job(settings={"pack_length": 32, "apply_evolving_rubric_reward": True}, **more) as job:
            spec = wanted(job, "token_mean", {})
            plan = Plan(spec, PROMPTS)
            wrap(job.learner, like=spec)
            for _ in range(rollouts):
                job.train()
            ended(job)
            unwrap(job.learner)
            truths = {prompt: json.loads(truth[0])["rubrics"] for prompt, truth in job.engine.truths}
            for index in range(rollouts):
                members = [(member.prompt, member.sample) for member in plan.step(index).members]
                expected, floor, _ = bench.oracle(spec, index, index, members, CASES[0])
                results.append(
                    {
                        "step": index,
                        "error": relative_error(bench.gradients[index], expected),
                        "floor": floor,
                        "norm": float(expected.norm()),
                        "prompts": sorted({prompt for prompt, _ in members}),
                        "scored_otherwise": sorted(prompt for prompt, said in truths.items() if said),
                    }
                )
    finally:
        module._generate_instance_wise_evolving_rubrics = native
    return results


def ended(job: Job) -> None:
    """Waits for the preparing thread, which has no rollout left."""
    job.actor._prep_future.result(timeout=60)


CONTROLS: Sequence[tuple[str, int, str]] = (
    # name, pack_length, loss_denominator
    ("token", 32, "token"),
    ("token", 40, "token"),
    ("token", 48, "token"),
    ("token", 64, "token"),
    ("constant", 32, "288"),
    ("constant", 64, "288"),
    ("tokens of each rank", 40, "token"),
)


def natively(bench: Bench, controls: Sequence[tuple[str, int, str]] = CONTROLS) -> list[dict[str, Any]]:
    """The first step of unwrapped jobs, observed: over the bar of the whole rollout's gradient, and of its own."""
    from open_instruct import grpo_utils

    results = []
    whole = grpo_utils.calculate_token_counts
    for name, pack, denominator in controls:
        counts = of_this_rank if name == "tokens of each rank" else whole
        grpo_utils.calculate_token_counts = counts
        args = {"loss_denominator": denominator, "num_epochs": 1}
        with bench.job(settings={"pack_length": pack}, args=args, rollouts=1) as job:
            ledger = bench.folder / f"native-{bench.ranks}"
            shutil.rmtree(ledger, ignore_errors=True)
            dist.barrier()
            spec = read(job.learner, framework="open_instruct").spec
            assert spec is not None
            wrap(job.learner, mode="observe", ledger=ledger, allow=("unproven_code",))  # one control has other counts
            job.train()
            dist.barrier()
            ended(job)
            (record,) = read_steps(ledger)
            members = [(prompt, sample) for prompt in job.engine.asked[:3] for sample in range(GROUP)]
            expected, floor, _ = bench.oracle(spec, 0, 0, members, CASES[0])
            trained = list(zip(record["prompt"], record["sample"], strict=True))
            samples = bench.samples(trained, spec.advantage)
            same = step_gradient(
                double(bench.model(0)),
                samples,
                term=spec.loss.policy,
                objective=spec.objective,
                weights=[weight or 0.0 for weight in record["weights"]],  # without a reading: the advantage is zero
            )
            results.append(
                {
                    "name": name,
                    "pack_length": pack,
                    "rows": sum(len(batch) for batch in job.actor.prepared_data[0]),
                    "trained": len(trained),
                    "asked": job.engine.asked[:3],
                    "members": sorted(zip(record["prompt"], record["sample"], record["rank"], strict=True)),
                    "tokens": sum(record["response_tokens"]),
                    "weights": sorted({weight for weight in record["weights"] if weight is not None}),
                    "error": relative_error(bench.gradients[0], expected),
                    "error_with_its_weights": relative_error(bench.gradients[0], same),
                    "floor": floor,
                }
            )
            unwrap(job.learner)
    grpo_utils.calculate_token_counts = whole
    return results


def of_this_rank(accumulation_steps: int, data: Any, device: Any, group: Any = None) -> dict[int, float]:
    """A known-bad denominator: the tokens of this rank alone, not of all; with one mini-batch."""
    return {0: float(sum(mask[:, 1:].sum() for mask in data.response_masks))}


def edges(bench: Bench) -> dict[str, Any]:
    """What is not a step of the plan is refused before the update."""
    said: dict[str, Any] = {}

    def refused(name: str, job: Job, act: Any) -> None:
        before = torch.cat([value.flatten() for value in values(job.learner.model)])
        try:
            act()
            said[name] = "nothing was refused"
        except (BatchDrift, CannotAttach) as error:
            said[name] = str(error)
        after = torch.cat([value.flatten() for value in values(job.learner.model)])
        said[f"{name}, moved"] = float((after - before).norm())

    with bench.job() as job:
        lookahead = wanted(job, "token_mean", {"staleness": Staleness(mode="lookahead", maximum=1)})
        refused("lookahead", job, lambda: wrap(job.learner, like=lookahead))
        untouched = {name: dict(vars(one)) for name, one in (("learner", job.learner), ("actor", job.actor))}
        spec = wanted(job, "token_mean", {})
        wrap(job.learner, like=spec)
        unwrap(job.learner)
        same = {name: dict(vars(one)) for name, one in (("learner", job.learner), ("actor", job.actor))}
        said["restored"] = all(
            known is same[name].get(key) for name, attributes in untouched.items() for key, known in attributes.items()
        )
        said["left behind"] = sorted(
            key for name, attributes in same.items() for key in attributes.keys() - untouched[name].keys()
        )
        wrap(job.learner, like=spec)
        job.train()
        job.engine.model_step -= 1  # the weights were not sent
        refused("stale", job, job.learner.step)
    with bench.job() as job:
        wrap(job.learner, like=wanted(job, "token_mean", {}))
        job.learner.args.__class__ = tampered(type(job.learner.args))
        refused("weights", job, job.learner.step)
    with bench.job() as job:
        wrap(job.learner, like=wanted(job, "token_mean", {}))
        native = job.actor._cleanup_old_steps
        job.actor._cleanup_old_steps = lambda step: (
            native(step),
            [strip(one) for one in job.actor.prepared_data[step]],
        )
        refused("unplanned batch", job, job.learner.step)
    with bench.job(args={"num_mini_batches": 2}) as job:
        spec = wanted(job, "token_mean", {}).replace(**{"optimizer_step.completions_per_step": 12})
        spec = spec.replace(**{"optimizer_step.parts_per_rollout": None, "order.last_optimizer_step": "short"})
        refused("mini-batches", job, lambda: wrap(job.learner, like=spec))
        wrap(job.learner, like=spec, mode="verify")
        refused("verified", job, job.learner.step)
    with bench.job() as job:
        job.actor.start()
        refused("started", job, lambda: wrap(job.learner, like=wanted(job, "token_mean", {})))
    for name, tamper in HANDS.items():
        flat = ScriptedRollouts(flat=frozenset({ORDER[1]}))
        with bench.job(settings=DROPS, script=flat) as job:
            wrap(job.learner, like=wanted(job, "token_mean", {}))
            tamper(job.actor)
            refused(name, job, job.learner.step)
    with bench.job(settings={**DROPS, **SOLVES}, prompts=3, burst=1) as job:
        wrap(job.learner, like=wanted(job, "token_mean", {}))
        job.actor.batchbridge._candidates._left_out = lambda number: False
        job.train()
        refused("a solved prompt is trained", job, job.learner.step)
    with bench.job(rollouts=3) as job:
        wrap(job.learner)
        job.actor.batchbridge._candidates.bound = 9
        for _ in range(2):
            job.learner.step()  # and its weights are not sent
        refused("too old", job, job.learner.step)
    silent = ScriptedRollouts(empty=frozenset((prompt, sample) for prompt in range(PROMPTS) for sample in range(GROUP)))
    with bench.job(script=silent) as job:
        wrap(job.learner, like=wanted(job, "token_mean", {}))
        refused("silent", job, job.learner.step)
    return said


def every_group(actor: Any) -> None:
    """The group that the filter drops is trained."""
    candidates = actor.batchbridge._candidates
    native = candidates.rollout

    def rollout(index: int) -> Any:
        made = native(index)
        made._filter = "none"
        return made

    candidates.rollout = rollout


def one_less(actor: Any) -> None:
    """A group that the filter keeps is dropped."""
    candidates = actor.batchbridge._candidates
    native = candidates.rollout

    def rollout(index: int) -> Any:
        made = native(index)
        take = made.take

        def taking(result: Any) -> bool:
            if made.taken:
                return bool(take(result))
            take(result)
            made.taken[0], made._kept = dataclasses.replace(made.taken[0], position=None), 0
            return False

        made.take = taking
        return made

    candidates.rollout = rollout


def left_out(actor: Any) -> None:
    """A group that the filter keeps is in no batch's table."""
    native = actor._cleanup_old_steps

    def cleanup(step: int) -> None:
        native(step)
        for batch in actor.prepared_data[step]:
            table = batch.batchbridge
            rows = tuple(
                tuple(tuple(piece for piece in row if piece.position) for row in part) for part in table.micro_batches
            )
            batch.batchbridge = dataclasses.replace(table, micro_batches=rows)

    actor._cleanup_old_steps = cleanup


HANDS = {"a dropped group is trained": every_group, "a kept group is dropped": one_less, "a kept group": left_out}
"""What has a hand in which groups are trained."""


def strip(batch: Any) -> None:
    vars(batch).pop("batchbridge", None)


def tampered(kind: type[Any]) -> type[Any]:
    """Arguments whose denominator is another than was set."""

    def get(self: Any) -> str:
        return str(1.01 * float(CONSTANT)) if "said" in vars(self) else "token"

    def put(self: Any, value: str) -> None:
        vars(self)["said"] = value

    return type("Tampered", (kind,), {"loss_denominator": property(get, put)})


def main(folder: Path) -> None:
    os.environ.setdefault("BATCHBRIDGE_OPTIMIZER", "sgd")
    bench = Bench(folder)
    if bench.rank == 0 and not bench.policy.exists():
        prepare(folder)
    while not (bench.policy / "tokenizer_config.json").exists():
        pass
    measured: dict[str, Any] = {"ranks": bench.ranks}
    for name, part in (
        ("edges", edges),
        ("taken", taken),
        ("rubrics", rubrics),
        ("natively", natively),
        ("wrapped", wrapped),
    ):
        measured[name] = part(bench)
        if bench.rank == 0:
            (folder / "measured.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")
    if bench.rank == 0:
        (folder / "finished").touch()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the package would keep the process
