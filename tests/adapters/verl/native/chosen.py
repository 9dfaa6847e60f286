"""Part of what `processes.py` runs: steps of losses that choose tokens of a micro-batch (clip_cov, kl_cov), and what
the oracle says of them given the choice that was written down."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gradients import K3, PPO, PROMPTS, SPLITS, STEPS, Bench, measured, spec_of
from tampering import TAMPERED, as_it_was, last_rank, padded
from verl.trainer.ppo import core_algos
from verl.workers.utils.padding import no_padding_2_padding

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit import Row, token_weights
from batchbridge.kit.identified_rows import PROMPT, SAMPLE
from batchbridge.kit.objectives import policy_losses
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import Sample, relative_error, step_gradient
from batchbridge_on_cpu.steps import Case, bar
from batchbridge_verl.engine import install, probe, remove

CLIP = dataclasses.replace(PPO, surrogate="clip_cov", dual_clip=None)
PENALTY = dataclasses.replace(CLIP, surrogate="kl_cov", clip_low=None, clip_high=None)
BETWEEN = {"clip_cov_ratio": 0.4, "clip_cov_lb": -1.25, "clip_cov_ub": 1.25}
"""Some tokens are outside of the bounds, and more are between them than are drawn."""
LARGEST = {"kl_cov_ratio": 0.4, "ppo_kl_coef": 0.5}
KL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"}


def told(settings: Mapping[str, float]) -> dict[str, float]:
    return {f"policy_loss.{name}": value for name, value in settings.items()}


CHOOSING = (
    Case("clip_cov", "clip_cov", CLIP, told(BETWEEN)),
    Case("kl_cov", "kl_cov", PENALTY, told(LARGEST)),
    Case(
        "clip_cov, k3",
        "clip_cov",
        dataclasses.replace(CLIP, **K3),
        {**told(BETWEEN), **KL},
        aggregations=("sequence_mean",),
    ),
    Case(
        "kl_cov, k3",
        "kl_cov",
        dataclasses.replace(PENALTY, **K3),
        {**told(LARGEST), **KL},
        aggregations=("token_mean",),
    ),
)
Choice = dict[tuple[int, int], list[int]]
"""(prompt, sample) -> 1 at each response token that is chosen."""


# ---- what was chosen


@contextlib.contextmanager
def written_down(bench: Bench) -> Iterator[list[Any]]:
    """By micro-batch: which rows it has, and how many tokens each has. See `choice_of`."""
    watch, seen = bench.worker.batchbridge._watch, []
    native = watch._hooked

    def hooked(made: torch.Tensor, micro_batch: Any) -> None:
        rows = zip(micro_batch[PROMPT].tolist(), micro_batch[SAMPLE].tolist(), strict=True)
        lengths = [len(row) for row in micro_batch["responses"].unbind()]
        seen.append(list(zip(rows, lengths, strict=True)))
        native(made, micro_batch)

    watch._hooked = hooked
    try:
        yield seen
    finally:
        del watch._hooked


def choice_of(bench: Bench, seen: Sequence[Any]) -> tuple[Choice, list[int]]:
    """What all ranks chose in the step, and how many tokens of each micro-batch that has more than one."""
    mine: Choice = {}
    counts = []
    for part, choice in zip(seen, bench.worker.batchbridge._watch._tap.last, strict=True):
        for (row, length), tokens in zip(part, choice, strict=True):
            mine[row] = tokens[:length].int().tolist()
        counts.append(int(choice.sum()))
    everyone: list[Any] = [None] * bench.processes
    torch.distributed.all_gather_object(everyone, (mine, counts))
    found: Choice = {}
    for other, _ in everyone:
        found |= {row: tokens for row, tokens in other.items() if row != (-1, -1)}
    return found, [count for _, more in everyone for count in more]


def in_order(choice: Choice, members: Sequence[Any]) -> list[list[int]]:
    return [choice[int(member[1]), int(member[3])] for member in members]


def rolled(choice: Sequence[Sequence[int]], samples: Sequence[Sample]) -> list[list[int]]:
    """As many other tokens: each choice moved on by one trained token of the step."""
    places = [(row, at) for row, sample in enumerate(samples) for at, mask in enumerate(sample.loss_mask) if mask]
    found = [[0] * len(one) for one in choice]
    for (row, at), (next_row, next_at) in zip(places, [*places[1:], *places[:1]], strict=True):
        found[next_row][next_at] = choice[row][at]
    return found


# ---- what the oracle says given the choice


def surrogate(case: Case, chosen: Sequence[int]) -> Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]:
    """Of one completion's tokens. kl_cov: a penalty of the distance to the old policy (arXiv 2505.22617)."""

    def loss(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
        picked = new.new_tensor(list(chosen))
        if case.objective.surrogate == "kl_cov":
            return -(new - old).exp() * advantage + LARGEST["ppo_kl_coef"] * picked * (new - old).abs()
        plain = dataclasses.replace(case.objective, surrogate="ppo")
        mask, given = torch.ones_like(new)[None], new.new_full((1, 1), advantage)
        return policy_losses(plain, new[None], old[None], mask, given)[0] * (1 - picked)

    return loss


def expected(
    bench: Bench, case: Case, spec: Spec, samples: Sequence[Sample], choice: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, float]:
    """The oracle's gradient, and the same code's error in float32, put together from completions."""
    rows = [Row(tokens=sum(sample.loss_mask), group=sample.group) for sample in samples]
    weights = [float(weight) for weight in token_weights(spec.loss.policy, rows)]
    found = []
    for model in (bench.exact, bench.rough):
        reference = bench.exact_reference if model is bench.exact else bench.reference
        parts = [
            step_gradient(
                model,
                [sample],
                term=spec.loss.policy,
                objective=spec.objective,
                reference=reference if spec.objective.kl_coefficient else None,
                weights=[weight],
                surrogate=surrogate(case, chosen),
            )
            for sample, weight, chosen in zip(samples, weights, choice, strict=True)
        ]
        found.append(torch.stack(parts).sum(0))
    return found[0], relative_error(found[1], found[0])


def seeded(bench: Bench) -> None:
    """verl's ranks draw each by itself."""
    torch.manual_seed(7 + bench.process)


def wrapped_choices(bench: Bench) -> list[dict[str, Any]]:
    """Every loss, aggregation and split, step by step; and how far no choice, and another, would be."""
    results = []
    for case in CHOOSING:
        for aggregation in measured(case):
            spec = spec_of(case, aggregation)
            plan = Plan(spec, PROMPTS)
            for split in ("fixed 2", "budget 40"):
                seeded(bench)
                install(bench.worker, bench.orders(spec, case, report=True))
                probe(bench.worker)
                for index in STEPS:
                    samples, members = bench.step(plan, index)
                    with written_down(bench) as seen:
                        bench.send(samples, members, index, SPLITS[split])
                    found, counts = choice_of(bench, seen)
                    choice = in_order(found, members)
                    results.append(
                        {
                            "case": case.name,
                            "aggregation": aggregation,
                            "split": split,
                            "step": index,
                            "choice": choice,
                            "micro-batches": counts,
                            "told": [numbers.chosen for numbers in bench.worker.batchbridge._recorder.taken()],
                            **compared(bench, case, spec, samples, choice),
                        }
                    )
                remove(bench.worker)
    return results


def compared(
    bench: Bench, case: Case, spec: Spec, samples: Sequence[Sample], choice: list[list[int]]
) -> dict[str, float]:
    assert bench.gradient is not None
    meant, floor = expected(bench, case, spec, samples, choice)
    found = {"error": relative_error(bench.gradient, meant), "floor": floor, "norm": float(meant.norm())}
    for name, other in (("none", [[0] * len(one) for one in choice]), ("another", rolled(choice, samples))):
        wrong, rough = expected(bench, case, spec, samples, other)
        found[name] = relative_error(bench.gradient, wrong) / bar(rough)
    return found


# ---- a step that something else has a hand in


def after_the_log_probabilities(bench: Bench, change: Callable[[], None]) -> None:
    """Between the moment when a choice is written down and verl's own."""
    engine = bench.worker.engine
    native = engine.prepare_model_outputs

    def outputs(*arguments: Any, **options: Any) -> Any:
        made = native(*arguments, **options)
        change()
        return made

    if last_rank(bench):
        engine.prepare_model_outputs = outputs


def drawn_again(bench: Bench) -> None:
    """Something random has come between, so that clip_cov draws others."""
    after_the_log_probabilities(bench, lambda: torch.rand(1))


def other_number(bench: Bench) -> None:
    config = bench.worker.loss_fn.keywords["config"].policy_loss

    def change() -> None:
        for name in ("clip_cov_ratio", "kl_cov_ratio"):
            object.__setattr__(config, name, 0.9)

    after_the_log_probabilities(bench, change)


def of_one_token(bench: Bench, *, chosen: bool, loss: Callable[..., torch.Tensor]) -> None:
    """Adds `loss` of one token of each micro-batch to verl's own. chosen: of one that is chosen."""
    native, watch = bench.worker.loss_fn, bench.worker.batchbridge._watch

    def changed(*, config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        value, metrics = native.func(config=config, model_output=model_output, data=data, dp_group=dp_group)
        choice = watch._tap._parts[-1].choice
        columns = data.select("response_mask", "old_log_probs", "advantages").to_padded_tensor()
        new, gains = no_padding_2_padding(model_output["log_probs"], data), columns["advantages"] != 0
        # An advantage of zero shows nothing, and what clip_cov clips has no gradient either way.
        inside = ((new - columns["old_log_probs"]).exp() - 1).abs() < 0.15
        places = (columns["response_mask"].bool() & (choice if chosen else ~choice) & gains & inside).nonzero()
        if len(places):
            row, at = places[0].tolist()
            one = loss(new[row, at], columns["old_log_probs"][row, at], columns["advantages"][row, at])
            value = value + one / data["batch_num_tokens"] * data["dp_size"]
        return value, metrics

    if last_rank(bench):
        bench.worker.loss_fn = functools.partial(changed, **native.keywords)


def plain(new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    return -(new - old).exp() * advantage


TAMPERS: dict[str, dict[str, Callable[[Bench], None]]] = {
    "clip_cov": {
        "nothing": lambda bench: None,
        "another draw": drawn_again,
        "another number": other_number,
        "a chosen token is trained": functools.partial(of_one_token, chosen=True, loss=plain),
        "another token is not": functools.partial(of_one_token, chosen=False, loss=lambda *given: -plain(*given)),
    },
    "kl_cov": {
        "nothing": lambda bench: None,
        "another number": other_number,
        "a chosen token has no penalty": functools.partial(
            of_one_token, chosen=True, loss=lambda new, old, _: -LARGEST["ppo_kl_coef"] * (new - old).abs()
        ),
        "another token has one": functools.partial(
            of_one_token, chosen=False, loss=lambda new, old, _: LARGEST["ppo_kl_coef"] * (new - old).abs()
        ),
        "another token is not trained": functools.partial(
            of_one_token, chosen=False, loss=lambda *given: -plain(*given)
        ),
    },
}

OF_CHOSEN = {"clip_cov": "a chosen token is trained", "kl_cov": "a chosen token has no penalty"}


def tampered_choice(
    bench: Bench, case: Case, tamper: Callable[[Bench], None], *, mode: str = "enforce", ledger: Path | None = None
) -> dict[str, Any]:
    spec, said, before = spec_of(case, "token_mean"), "", bench.updates
    plan, chosen = Plan(spec, PROMPTS), []
    seeded(bench)
    install(bench.worker, bench.orders(spec, case, mode=mode, ledger=ledger))
    config = bench.worker.loss_fn.keywords["config"].policy_loss
    kept = {name: getattr(config, name) for name in ("clip_cov_ratio", "kl_cov_ratio")}
    try:
        with as_it_was(bench):
            for index in (TAMPERED - 1, TAMPERED):
                if index == TAMPERED:
                    tamper(bench)
                samples, members = bench.step(plan, index)
                with written_down(bench) as seen:
                    bench.send(samples, members, index, SPLITS["fixed 2"])
                chosen.append(choice_of(bench, seen)[0])
    except BatchDrift as drift:
        said = str(drift)
    finally:
        for name, value in kept.items():
            object.__setattr__(config, name, value)
        remove(bench.worker)
    everyone: list[Any] = [None] * bench.processes
    torch.distributed.all_gather_object(everyone, said)
    return {"said": said, "alike": set(everyone) == {said}, "updates": bench.updates - before, "chosen": chosen}


def natively(bench: Bench, case: Case, *, mode: str, ledger: Path) -> dict[str, Any]:
    """verl's own settings of `case`, in a mode that sets nothing: what is trained is its own configuration's."""
    config = bench.worker.loss_fn.keywords["config"]
    names = {"loss_agg_mode": "token-mean", "policy_loss.loss_mode": case.loss_mode, **case.settings}
    kept = {}
    for name, value in names.items():
        owner = config.policy_loss if name.startswith("policy_loss.") else config
        kept[name] = owner, getattr(owner, name.rpartition(".")[2])
        object.__setattr__(owner, name.rpartition(".")[2], value)
    try:
        tampers = {name: TAMPERS[case.loss_mode][name] for name in ("nothing", OF_CHOSEN[case.loss_mode])}
        return {
            name: tampered_choice(bench, case, tamper, mode=mode, ledger=ledger / f"{case.name} {mode} {name}")
            for name, tamper in tampers.items()
        }
    finally:
        for name, (owner, value) in kept.items():
            object.__setattr__(owner, name.rpartition(".")[2], value)


def v0(bench: Bench, case: Case) -> dict[str, float]:
    """A step on rows as the V0 trainer sends them."""
    spec = spec_of(case, "sequence_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), STEPS[-1])
    seeded(bench)
    install(bench.worker, bench.orders(spec, case))
    try:
        with as_it_was(bench), written_down(bench) as seen:
            native = bench.worker.train_mini_batch
            bench.worker.train_mini_batch = lambda data: native(padded(data))
            bench.send(samples, members, STEPS[-1], SPLITS["fixed 2"])
        padded_to = in_order(choice_of(bench, seen)[0], members)
        choice = [row[: len(sample.completion)] for row, sample in zip(padded_to, samples, strict=True)]
        return compared(bench, case, spec, samples, choice)
    finally:
        remove(bench.worker)


def attached(bench: Bench, case: Case, *, of: str | None = None) -> str:
    """The reason against a worker whose library has the loss `of` under the name of `case`'s; empty: it is taken."""
    registry, said = core_algos.POLICY_LOSS_REGISTRY, ""
    native, state = registry[case.loss_mode], torch.get_rng_state()
    registry[case.loss_mode] = registry[of or case.loss_mode]
    try:
        install(bench.worker, bench.orders(spec_of(case, "token_mean"), case))
        probe(bench.worker)
    except CannotAttach as error:
        said = error.reasons["weight_probe"]
    finally:
        registry[case.loss_mode] = native
        remove(bench.worker)
    return said if torch.equal(state, torch.get_rng_state()) else f"something drew: {said}"


EVERY_TOKEN = Case("clip_cov", "clip_cov", CLIP, told({"clip_cov_ratio": 1.0, "clip_cov_lb": -1e9, "clip_cov_ub": 1e9}))
"""Chooses every token that is not clipped."""


def choices(folder: Path) -> dict[str, Any]:
    """Everything that is measured of losses that choose tokens."""
    bench = Chosen(folder)
    pair = CHOOSING[:2]
    return {
        "wrapped": wrapped_choices(bench),
        "tampering": {
            case.name: {
                name: tampered_choice(bench, case, tamper, ledger=folder / f"{case.name} enforce {name}")
                for name, tamper in TAMPERS[case.name].items()
            }
            for case in pair
        },
        "verify": {case.name: natively(bench, case, mode="verify", ledger=folder) for case in pair},
        "observe": {case.name: natively(bench, case, mode="observe", ledger=folder) for case in pair},
        "v0": {case.name: v0(bench, case) for case in pair},
        "attached": {
            **{case.name: attached(bench, case) for case in pair},
            **{f"{case.name} is vanilla": attached(bench, case, of="vanilla") for case in pair},
            "every token is chosen": attached(bench, EVERY_TOKEN),
        },
    }


class Chosen(Bench):
    """Its oracle's reference is made once."""

    def __init__(self, folder: Path) -> None:
        from batchbridge.testing.oracle import double

        super().__init__(folder)
        self.exact_reference = double(self.reference)
