"""Part of what `processes.py` runs: corrections towards the sampler, by verl's own functions over a whole step as its
trainers call them, and what the oracle says of the weights and masks that they give; and old log-probabilities that are
the sampler's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gradients import CASES, PROMPTS, SPLITS, STEPS, Bench, measured, spec_of, told
from tampering import TAMPERED, as_it_was, forward, last_rank
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from batchbridge.errors import BatchDrift
from batchbridge.kit.identified_rows import PROMPT, SAMPLE
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import Sample, relative_error
from batchbridge_on_cpu.steps import Case, bar
from batchbridge_verl.engine import install, probe, remove

CORRECTIONS: dict[str, dict[str, Any]] = {
    "token_truncate [-, 1.2]": {"rollout_is": "token", "rollout_is_threshold": 1.2},
    "token_truncate [-, 0.8_1.3]": {"rollout_is": "token", "rollout_is_threshold": "0.8_1.3"},
    "reject token_k1 0.8_1.2": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.2"},
    "reject seq_max_k2 0.1": {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.1},
    "sequence_truncate [-, 2.0]; reject token_k1 0.6_1.6": {
        "rollout_is": "sequence",
        "rollout_is_threshold": 2.0,
        "rollout_is_batch_normalize": True,
        "rollout_rs": "token_k1",
        "rollout_rs_threshold": "0.6_1.6",
    },
}
"""The canonical words, and verl's settings of `rollout_correction`; the last are those of a published script."""
COMPARED = tuple(case for case in CASES if case.name in ("vanilla", "vanilla, k3", "gspo"))
Made = Mapping[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]
"""(prompt, sample) -> weights and mask of its tokens, as verl's functions give them."""


def sampled(samples: Sequence[Sample], members: Sequence[Any]) -> list[torch.Tensor]:
    """The log-probabilities of a sampler that was a little elsewhere."""
    found = []
    for (_, prompt, _, number), sample in zip(members, samples, strict=True):
        assert sample.old_logprobs is not None
        made = torch.Generator().manual_seed(1000 * int(prompt) + int(number))
        old = sample.old_logprobs.float()
        found.append(old + 0.25 * torch.randn(len(old), generator=made))
    return found


def corrected(samples: Sequence[Sample], members: Sequence[Any], settings: Mapping[str, Any]) -> Made:
    """What verl's trainer would add to a rollout of these completions."""
    places = [(int(prompt), int(sample)) for _, prompt, _, sample in members]

    def padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)

    old = [sample.old_logprobs.float() for sample in samples if sample.old_logprobs is not None]
    masks = [torch.tensor(list(sample.loss_mask)) for sample in samples]
    weights, mask, _ = compute_rollout_correction_and_rejection_mask(
        padded(old), padded(sampled(samples, members)), padded(masks), **settings
    )
    found = torch.ones_like(padded(old)) if weights is None else weights.batch["rollout_is_weights"]
    return {
        place: (found[row, : len(one)].clone(), mask[row, : len(one)].clone())
        for row, (place, one) in enumerate(zip(places, masks, strict=True))
    }


def arriving(bench: Bench, made: Made, *, weighs: bool) -> None:
    """Has the rows of every call carry what verl's trainer added; its mask in `response_mask` alone, as V1 does."""
    native = bench.worker.train_mini_batch

    def train_mini_batch(data: Any) -> Any:
        weights, masks = [], []
        rows = zip(data[PROMPT].tolist(), data[SAMPLE].tolist(), data["response_mask"].unbind(), strict=True)
        for prompt, sample, own in rows:
            weight, mask = made.get((prompt, sample), (torch.zeros(len(own)), torch.zeros_like(own)))
            weights.append(weight)
            masks.append(mask.to(own.dtype))
        data["response_mask"] = torch.nested.as_nested_tensor(masks, layout=torch.jagged)
        if weighs:
            data["rollout_is_weights"] = torch.nested.as_nested_tensor(weights, layout=torch.jagged)
        return native(told(data))

    bench.worker.train_mini_batch = train_mini_batch


def oracles(samples: Sequence[Sample], members: Sequence[Any], made: Made) -> list[Sample]:
    """The completions as the oracle has them: tokens that are rejected are out of the mask, weights are factors."""
    found = []
    for sample, (_, prompt, _, number) in zip(samples, members, strict=True):
        weight, mask = made[prompt, number]
        found.append(dataclasses.replace(sample, multiplier=weight, loss_mask=mask.tolist()))
    return found


def specified(case: Case, aggregation: str, words: str) -> Spec:
    return spec_of(case, aggregation).replace(**{"objective.sampler_correction": words})


def wrapped_corrections(bench: Bench) -> list[dict[str, Any]]:
    """Every correction and objective, step by step; and how far the plain objective would be."""
    results = []
    for words, settings in CORRECTIONS.items():
        for case in COMPARED:
            if case.name == "gspo" and settings.get("rollout_is") == "token":
                continue  # a ratio of sequences has no factor of single tokens: refused
            for aggregation in ("token_mean", "sequence_mean") if case.name != "gspo" else ("sequence_mean",):
                spec = specified(case, aggregation, words)
                plan = Plan(spec, PROMPTS)
                install(bench.worker, bench.orders(spec, case))
                probe(bench.worker)
                for index in STEPS:
                    samples, members = bench.step(plan, index)
                    made = corrected(samples, members, settings)
                    with as_it_was(bench):
                        arriving(bench, made, weighs="rollout_is" in settings)
                        bench.send(samples, members, index, SPLITS["fixed 2"])
                    named = dataclasses.replace(case, name=f"{case.name}; {words}")
                    meant = oracles(samples, members, made)
                    found = bench.measure(named, spec, index, meant, bench.gradient)
                    plain, floor, _ = bench.expected(case, spec_of(case, aggregation), index, samples)
                    assert bench.gradient is not None
                    found["plain"] = relative_error(bench.gradient, plain) / bar(floor)
                    found["kept"] = sum(sum(sample.loss_mask) for sample in meant)
                    found["all"] = sum(sum(sample.loss_mask) for sample in samples)
                    results.append(found)
                remove(bench.worker)
    return results


def natively_rejected(bench: Bench) -> float:
    """verl alone, whose mean over tokens counts those that it rejected. Error over the bar."""
    config = bench.worker.loss_fn.keywords["config"]
    object.__setattr__(config, "loss_agg_mode", "token-mean")
    words = "reject token_k1 0.8_1.2"
    case = COMPARED[0]
    spec = specified(case, "token_mean", words)
    samples, members = bench.step(Plan(spec, PROMPTS), 2)
    made = corrected(samples, members, CORRECTIONS[words])
    with as_it_was(bench):
        arriving(bench, made, weighs=False)
        bench.send(samples, members, 2, SPLITS["fixed 1"])
    named = dataclasses.replace(case, name=f"natively; {words}")
    expected, floor, _ = bench.expected(named, spec, 2, oracles(samples, members, made))
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected) / bar(floor)


def weight_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        micro_batch["rollout_is_weights"].values().mul_(0.9)
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def rejected_tokens_trained(bench: Bench) -> None:
    """On every rank: not each of them has one."""

    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        micro_batch["response_mask"].values().fill_(1)
        return native(micro_batch, **options)

    forward(bench, change)


def tampered_correction(bench: Bench, tamper: Any) -> dict[str, Any]:
    """A corrected step with a hand in it."""
    words = list(CORRECTIONS)[-1]
    case, said, before = COMPARED[0], "", bench.updates
    spec = specified(case, "token_mean", words)
    plan = Plan(spec, PROMPTS)
    install(bench.worker, bench.orders(spec, case))
    try:
        samples, members = bench.step(plan, TAMPERED)
        with as_it_was(bench):
            arriving(bench, corrected(samples, members, CORRECTIONS[words]), weighs=True)
            tamper(bench)
            bench.send(samples, members, TAMPERED, SPLITS["fixed 2"])
    except BatchDrift as drift:
        said = str(drift)
    finally:
        remove(bench.worker)
    return {"said": said, "updates": bench.updates - before}


# ---- the sampler's log-probabilities as the old ones (bypass_mode)


def from_the_sampler(bench: Bench, factor: float = 1.0) -> None:
    """Has the rows of every call carry the sampler's log-probabilities, of which the old ones are a copy, as verl's
    trainers make it. factor: of the old ones; 1: a copy."""
    native = bench.worker.train_mini_batch

    def train_mini_batch(data: Any) -> Any:
        data["rollout_log_probs"] = data["old_log_probs"].clone()
        data["old_log_probs"] = data["old_log_probs"] * factor
        return native(told(data))

    bench.worker.train_mini_batch = train_mini_batch


def bypassing(bench: Bench, case: Case, aggregation: str, index: int) -> tuple[Spec, list[Sample], Sequence[Any]]:
    """A step whose old log-probabilities are the sampler's."""
    spec = spec_of(case, aggregation).replace(**{"objective.old_logprobs": "sampler"})
    samples, members = bench.step(Plan(spec, PROMPTS), index)
    old = sampled(samples, members)
    return spec, [dataclasses.replace(one, old_logprobs=own) for one, own in zip(samples, old, strict=True)], members


def wrapped_bypass(bench: Bench) -> list[dict[str, Any]]:
    """Every objective, step by step; and how far that of log-probabilities which are scored again would be."""
    results = []
    for case in CASES:
        aggregation = measured(case)[0]
        for index in STEPS:
            spec, samples, members = bypassing(bench, case, aggregation, index)
            install(bench.worker, bench.orders(spec, case))
            probe(bench.worker)
            with as_it_was(bench):
                from_the_sampler(bench)
                bench.send(samples, members, index, SPLITS["fixed 2"])
            named = dataclasses.replace(case, name=f"{case.name}; bypass_mode")
            found = bench.measure(named, spec, index, samples, bench.gradient)
            scored = bench.step(Plan(spec, PROMPTS), index)[0]
            plain, floor, _ = bench.expected(case, spec_of(case, aggregation), index, scored)
            assert bench.gradient is not None
            found["plain"] = relative_error(bench.gradient, plain) / bar(floor)
            results.append(found)
            remove(bench.worker)
    return results


def old_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        micro_batch["old_log_probs"].values().mul_(0.9)
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def tampered_bypass(bench: Bench, tamper: Any = None, *, factor: float = 1.0) -> dict[str, Any]:
    """A step with a hand in it."""
    said, before = "", bench.updates
    spec, samples, members = bypassing(bench, CASES[0], "token_mean", TAMPERED)
    install(bench.worker, bench.orders(spec, CASES[0]))
    try:
        with as_it_was(bench):
            from_the_sampler(bench, factor)
            if tamper is not None:
                tamper(bench)
            bench.send(samples, members, TAMPERED, SPLITS["fixed 2"])
    except BatchDrift as drift:
        said = str(drift)
    finally:
        remove(bench.worker)
    return {"said": said, "updates": bench.updates - before}


def corrections(folder: Path) -> dict[str, Any]:
    """Everything that is measured of corrections."""
    bench = Bench(folder)
    return {
        "natively": natively_rejected(bench),
        "wrapped": wrapped_corrections(bench),
        "tampering": {
            "nothing": tampered_correction(bench, lambda bench: None),
            "the weights": tampered_correction(bench, weight_touched),
            "the mask": tampered_correction(bench, rejected_tokens_trained),
        },
        "bypass": wrapped_bypass(bench),
        "bypass tampering": {
            "nothing": tampered_bypass(bench),
            "before the step": tampered_bypass(bench, factor=0.9),
            "in a micro-batch": tampered_bypass(bench, old_touched),
        },
    }
