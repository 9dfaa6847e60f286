"""Part of what `processes.py` runs: prompts that a group shares, in verl's real `TrainingWorker` and FSDP engine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from gradients import PACKED, SPLITS, Bench, empty, read_of, wrapped
from tampering import TAMPERS, fsdp1_on_the_cpu, losses, tampered

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit import packing
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import Sample, double, relative_error, step_gradient
from batchbridge.testing.tiny import TINY, tiny_tokenizer
from batchbridge_on_cpu.steps import PROMPTS, bar, spec_of
from batchbridge_on_cpu.verl.scripted import packed
from batchbridge_on_cpu.verl.workers import batch
from batchbridge_verl.engine import install, remove
from batchbridge_verl.shared_prompts import SharedPrompts

FAMILIES = {"Gemma": "gemma", "Llama": "llama", "Mistral": "mistral", "Qwen2": "qwen2", "Qwen3": "qwen3"}
"""Class of transformers -> its `model_type`."""
SIZES: dict[str, Any] = {**TINY, "head_dim": 8, "sliding_window": None}
CASE = PACKED[0]
STEP = 3
"""Of the plan: five completions, groups whole and cut."""


def samples_of(bench: Bench) -> tuple[list[Sample], list[Any], Any]:
    spec = spec_of(CASE, "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), STEP)
    return list(samples), list(members), spec


@contextlib.contextmanager
def installed(bench: Bench, padding: Any = "free") -> Iterator[None]:
    bench.padding = padding
    spec = spec_of(CASE, "token_mean")
    install(bench.worker, bench.orders(spec, CASE))
    bench.worker.batchbridge._last = STEP - 1
    try:
        yield
    finally:
        remove(bench.worker)
        bench.padding = "free"


def trained(bench: Bench, samples: Sequence[Sample], members: Sequence[Any], split: str, **more: Any) -> torch.Tensor:
    bench.send(samples, members, STEP, SPLITS[split], **more)
    assert bench.gradient is not None
    return bench.gradient


# ---- what the policy is run on


def tokens_run(bench: Bench) -> dict[str, list[int]]:
    """Tokens that the policy was run on in one large micro-batch: as verl lays rows, shared, and those that there are
    of each prompt once; the first of a run's are the rows that are held against verl's own pass."""
    samples, members, _ = samples_of(bench)
    seen: list[int] = []
    hook = bench.worker.engine.module.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    found = {}
    for padding in ("padded", "free"):
        with installed(bench, padding):
            seen.clear()
            trained(bench, samples, members, "budget 200")
            found[padding] = list(seen)
    hook.remove()
    prompts = {tuple(sample.prompt) for sample in samples}
    found["rows"] = [sum(len(sample.prompt) + len(sample.completion) for sample in samples)]
    found["once"] = [sum(map(len, prompts)) + sum(len(sample.completion) for sample in samples)]
    return found


# ---- scoring


def scored(bench: Bench, split: dict[str, Any]) -> dict[str, float]:
    """Log-probabilities and entropies of a batch of rows as `infer_batch` gives them, shared against verl's own: the
    largest difference at the completions, and at each other place what stands there."""
    samples, members, _ = samples_of(bench)
    mine = [*samples, samples[0]] if bench.ranks == 1 else [*samples[2 * bench.rank :][:2], *samples[:2]]
    found: dict[str, dict[str, Any]] = {}
    for padding in ("padded", "free"):
        with installed(bench, padding):
            settings = {"calculate_entropy": True, "compute_loss": False, "temperature": 0.7}
            data = batch(mine, members[:1] * len(mine), step=STEP, **{**split, **settings})
            found[padding] = dict(bench.worker.infer_batch(data).items())
    off = {"log_probs": 0.0, "entropy": 0.0, "elsewhere": 0.0}
    for name in ("log_probs", "entropy"):
        for sample, own, ours in zip(mine, found["padded"][name].unbind(), found["free"][name].unbind(), strict=True):
            first = len(sample.prompt) - 1
            there = slice(first, first + len(sample.completion))
            off[name] = max(off[name], float((own[there] - ours[there]).abs().max()))
            off["elsewhere"] = max(off["elsewhere"], float(ours[:first].abs().sum() + ours[there.stop :].abs().sum()))
    return off


# ---- completions with tools' answers, and an entropy term


def with_answers(bench: Bench) -> dict[str, Any]:
    """Completions with untrained tokens inside: read by what follows, and without a weight."""
    samples, members, spec = samples_of(bench)
    masked = [
        dataclasses.replace(sample, loss_mask=[int(place % 3 != 1) for place in range(len(sample.completion))])
        for sample in samples
    ]
    with installed(bench):
        gradient = trained(bench, masked, members, "budget 40")
    exact, rough = (
        step_gradient(model, masked, term=spec.loss.policy, objective=spec.objective)
        for model in (bench.exact, bench.rough)
    )
    whole = step_gradient(bench.exact, samples, term=spec.loss.policy, objective=spec.objective)
    floor = relative_error(rough, exact)
    return {
        "error": relative_error(gradient, exact),
        "floor": floor,
        "masks matter": relative_error(whole, exact) / bar(floor),
    }


def entropy(bench: Bench) -> dict[str, float]:
    """An entropy term's gradient, shared against verl's own rows; and how much the term is."""
    samples, members, _ = samples_of(bench)
    config = bench.worker.loss_fn.keywords["config"]
    found = {}
    for coefficient in (0.0, 0.1):
        object.__setattr__(config, "entropy_coeff", coefficient)
        for padding in ("padded", "free"):
            bench.padding = padding
            spec = spec_of(CASE, "token_mean").replace(**{"objective.entropy_coefficient": coefficient})
            install(bench.worker, bench.orders(spec, CASE))
            bench.worker.batchbridge._last = STEP - 1
            found[padding, coefficient] = trained(
                bench, samples, members, "budget 40", calculate_entropy=bool(coefficient)
            )
            remove(bench.worker)
    object.__setattr__(config, "entropy_coeff", 0.0)
    bench.padding = "free"
    return {
        "error": relative_error(found["free", 0.1], found["padded", 0.1]),
        "term": relative_error(found["free", 0.1], found["free", 0.0]),
    }


# ---- attention that sees something else

SEES: dict[str, Callable[[Any], tuple[int, int]]] = {
    "everything that lies before": lambda segment: (0, segment.first),
    "the completions of its prompt before it": lambda segment: (segment.prompt_first, segment.first),
    "its prompt but for the first token": lambda segment: (segment.prompt_first + 1, segment.prompt_end),
    "nothing of its prompt": lambda segment: (0, 0),
}
"""What a completion's tokens see beside their own: from where, to where."""


@contextlib.contextmanager
def seeing(how: str) -> Iterator[None]:
    """While attention is another one."""
    native = packing._by_segment

    def attention(rows: Any, query: Any, key: Any, value: Any, scale: Any, dropout: Any) -> Any:
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
        mask = torch.zeros(query.shape[2], query.shape[2], dtype=torch.bool)
        for segment in rows.segments:
            own = slice(segment.first, segment.end)
            mask[own, own] = torch.ones_like(mask[own, own]).tril()
            if segment.prompt_end > segment.prompt_first or how.startswith("everything"):
                mask[own, slice(*SEES[how](segment))] = True
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return out.transpose(1, 2)

    packing._by_segment = attention
    try:
        yield
    finally:
        packing._by_segment = native


def seen_otherwise(bench: Bench, how: str) -> dict[str, Any]:
    """What is said of it before the first update; and, where nobody compares, its gradient's error over the bar."""
    samples, members, spec = samples_of(bench)
    before, said = bench.updates, ""
    with seeing(how), installed(bench):
        try:
            trained(bench, samples, members, "budget 200")
        except BatchDrift as drift:
            said = str(drift)
    applied, native = bench.updates - before, SharedPrompts._compare
    SharedPrompts._compare = lambda *_: None  # type: ignore[method-assign]  # put back below
    try:
        with seeing(how), installed(bench):
            gradient = trained(bench, samples, members, "budget 200")
    finally:
        SharedPrompts._compare = native  # type: ignore[method-assign]  # as above
    expected, floor, _ = bench.expected(CASE, spec, STEP, samples)
    return {"said": said, "applied": applied, "bars": relative_error(gradient, expected) / bar(floor)}


# ---- models


def of_family(bench: Bench, folder: Path, family: str) -> dict[str, float]:
    """A family's gradient against the oracle over the same weights."""
    config = getattr(transformers, f"{family}Config")(**SIZES)
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    place = folder / family
    model.save_pretrained(place / "policy")
    tiny_tokenizer().save_pretrained(place / "policy")
    other = Bench(place, *packed(attention="sdpa"))
    samples, members, spec = samples_of(bench)
    with installed(other):
        gradient = trained(other, samples, members, "budget 40")
    names = [name for name, _ in other.worker.engine.module.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()], "gradients are compared in one order"
    exact, rough = (
        step_gradient(one, samples, term=spec.loss.policy, objective=spec.objective)
        for one in (double(model), model.eval())
    )
    return {"error": relative_error(gradient, exact), "floor": relative_error(rough, exact)}


def against_own_rows(folder: Path, *more: str) -> float:
    """The gradient of another setting, shared against verl's own rows."""
    bench = Bench(folder, *packed(attention="sdpa"), *more)
    samples, members, _ = samples_of(bench)
    found = {}
    for padding in ("padded", "free"):
        with installed(bench, padding):
            found[padding] = trained(bench, samples, members, "budget 40")
    return relative_error(found["free"], found["padded"])


def refused(folder: Path, *more: str) -> dict[str, Any]:
    """What a worker says to "free", and whether "auto" leaves its engine alone."""
    bench = Bench(folder, *more)
    said = ""
    try:
        with installed(bench):
            pass
    except CannotAttach as error:
        said = error.reasons.get("padding_free", "")
    with installed(bench, "auto"):
        alone = "prepare_model_inputs" not in vars(bench.worker.engine)
    return {"said": said, "alone": alone}


def left_alone(bench: Bench) -> bool:
    """Whether `remove` leaves an engine as it was."""
    before = set(vars(bench.worker.engine))
    with installed(bench):
        during = set(vars(bench.worker.engine))
    return "prepare_model_inputs" in during and set(vars(bench.worker.engine)) == before


def beside(bench: Bench, folder: Path) -> dict[str, Any]:
    """Tokens that a reference's engine is run on, in scoring, where a worker that shares prompts has it beside it; and
    whether it is left as it was."""
    other = Bench(folder, *packed(attention="sdpa")).worker
    samples, members, spec = samples_of(bench)
    before, seen = set(vars(other.engine)), []
    other.engine.module.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    install(bench.worker, bench.orders(spec, CASE), [other.engine])
    settings = {"calculate_entropy": False, "compute_loss": False, "use_dynamic_bsz": True}
    other.infer_batch(batch(samples, members, step=STEP, max_token_len_per_gpu=200, **settings))
    remove(bench.worker)
    return {"tokens": seen, "left alone": set(vars(other.engine)) == before}


def shared(bench: Bench, folder: Path) -> dict[str, Any]:
    bench.padding = "free"
    found: dict[str, Any] = {
        "wrapped": wrapped(bench, PACKED),
        "empty": empty(bench, folder),
        "read": read_of(bench),
        "scored": {name: scored(bench, split) for name, split in SPLITS.items() if not name.endswith("200")},
        "answers": with_answers(bench),
        "entropy": entropy(bench),
        "seen": {how: seen_otherwise(bench, how) for how in SEES},
        "losses": losses(bench),
        "tampering": {name: tampered(bench, TAMPERS[name]) for name in ("nothing", "the loss", "the mask")},
        "left alone": left_alone(bench),
    }
    if bench.ranks == 1:
        found["tokens"] = tokens_run(bench)
        found["beside"] = beside(bench, folder)
        found["families"] = {kind: of_family(bench, folder, name) for name, kind in FAMILIES.items()}
        found["others"] = {
            "gradient checkpointing": against_own_rows(
                folder, "actor_rollout_ref.model.enable_gradient_checkpointing=True"
            )
        }
        with fsdp1_on_the_cpu():
            found["others"]["FSDP1"] = against_own_rows(folder, "actor_rollout_ref.actor.strategy=fsdp")
        lora = [f"actor_rollout_ref.model.{word}" for word in ("lora_rank=4", "target_modules=all-linear")]
        dropping = "+actor_rollout_ref.model.override_config.attention_dropout=0.1"
        found["refused"] = {
            "eager": refused(folder, *packed(attention="eager")),
            "flash": refused(folder, *packed(attention="packed_cpu")),
            "lora": refused(folder, *packed(attention="sdpa"), *lora),
            "dropout": refused(folder, *packed(attention="sdpa"), dropping),
        }
    return found
