"""Part of what `processes.py` runs: rows with images in verl's real `TrainingWorker` and FSDP engine."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import os
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from gradients import CASES, SPLITS, Bench
from tensordict import NonTensorData, NonTensorStack
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.utils.tensordict_utils import nested_tensor_from_tensor_list
from verl.utils.tokenizer import hf_processor

from batchbridge.errors import BatchDrift
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import Sample, double, relative_error, step_gradient
from batchbridge_on_cpu import seeing
from batchbridge_on_cpu.steps import PROMPTS, bar, moved, spec_of
from batchbridge_on_cpu.verl import pictures  # noqa: F401 - verl finds a processor
from batchbridge_verl.engine import install, probe, remove

CHECKED = CASES[:2]
"""Objectives: without and with a KL term, which needs a reference."""
AGGREGATIONS = ("token_mean", "sequence_mean")
STEPS = (2, 3, 4)
"""Of the plan: whole groups, and a cut group with a completion whose loss mask is all zero; two rows and more on each
rank."""


class Plain(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model with transformers' own forward, whatever verl puts into the classes of its parts."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self._own = model, {type(part): type(part).forward for part in model.modules()}

    def forward(self, **inputs: Any) -> Any:
        theirs = {kind: kind.forward for kind in self._own}
        for kind, own in self._own.items():
            kind.forward = own
        try:
            return self.model(**inputs)
        finally:
            for kind, forward in theirs.items():
                kind.forward = forward


class Seeing(Bench):
    """A bench each of whose prompts has one or two images."""

    def __init__(self, folder: Path, *more: str, family: str) -> None:
        policy = Plain(seeing.seeing_policy(family=family))  # before verl puts its forward into the class
        own = folder / f"seeing-{os.environ['RANK']}"
        seeing.save(own / "policy", family=family)
        super().__init__(own, *more)
        self.policy = policy
        self.behind, self.reference = moved(policy, 1, 0.015), moved(policy, 2, 0.03)
        self.exact, self.rough = double(policy), copy.deepcopy(policy).eval()
        self._loop = types.SimpleNamespace(
            processor=hf_processor(own / "policy"), tokenizer=self.tokenizer, _get_mm_processor_kwargs=lambda audio: {}
        )

    def made(self, plan: Plan, rollout: int, position: int, row: int) -> Sample:
        """With the images of its prompt."""
        return self.seen(super().made(plan, rollout, position, row))

    def seen(self, sample: Sample, *, others: bool = False) -> Sample:
        """A sample behind its images, or behind other ones of the same sizes."""
        shown = seeing.inputs(sample.group, len(sample.completion), others=others)
        return dataclasses.replace(sample, prompt=seeing.tokenize(self.script.prompt(sample.group)), inputs=shown)

    def filler(self, samples: Sequence[Sample]) -> Sample:
        """A copy of a row with its images, as the driver makes it."""
        silent = [0] * len(samples[0].completion)
        return dataclasses.replace(samples[0], loss_mask=silent, advantage=0.0)

    def sent(self, data: Any, rows: Sequence[Sample | None]) -> Any:
        """With what verl's agent loop adds to a row, by its own functions: its images' tensors, four position numbers
        of each token."""
        tensors, places = [], []
        for row in filter(None, rows):
            ids = torch.tensor([[*row.prompt, *row.completion]])
            images = {"images": seeing.shown_with(row.group)}
            output = types.SimpleNamespace(multi_modal_data=images, mm_processor_kwargs=None)
            made = AgentLoopWorker._compute_multi_modal_inputs(self._loop, output, ids)
            places.append(AgentLoopWorker._compute_position_ids(self._loop, ids, torch.ones_like(ids), made)[0])
            tensors.append(NonTensorData(made))
        data["position_ids"] = nested_tensor_from_tensor_list(places, ragged_idx=2)
        data["multi_modal_inputs"] = NonTensorStack(*tensors)
        return data


def wrapped(bench: Seeing) -> Iterator[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    splits = list(SPLITS) if bench.processes == 1 else ["fixed 1", "fixed 2", "budget 40"]
    for case, aggregation, split in itertools.product(CHECKED, AGGREGATIONS, splits):
        spec = spec_of(case, aggregation)
        plan = Plan(spec, PROMPTS)
        with installed(bench, spec, case):
            for index in STEPS:
                samples, members = bench.step(plan, index)
                bench.worker.batchbridge._last = None  # steps between are left out
                bench.send(samples, members, index, SPLITS[split])
                yield {"split": split, **bench.measure(case, spec, index, samples, bench.gradient)}


@contextlib.contextmanager
def installed(bench: Seeing, spec: Any, case: Any) -> Iterator[None]:
    install(bench.worker, bench.orders(spec, case))
    probe(bench.worker)
    try:
        yield
    finally:
        remove(bench.worker)


def other_pictures(bench: Seeing) -> float:
    """The gradient of a step against an oracle that is shown other pictures of the same sizes. Error over the bar."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    with installed(bench, spec, CASES[0]):
        bench.send(samples, members, 0, SPLITS["fixed 2"])
    _, floor, _ = bench.expected(CASES[0], spec, 0, samples)
    others = [bench.seen(sample, others=True) for sample in samples]
    expected = step_gradient(bench.exact, others, term=spec.loss.policy, objective=spec.objective)
    assert bench.gradient is not None
    return relative_error(bench.gradient, expected) / bar(floor)


def drifts(bench: Seeing) -> list[str]:
    """What a step says whose first micro-batch's gradient is lost, on this rank."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 3)
    engine, said = bench.worker.engine, []
    native, seen = engine.forward_step, []

    def forward_step(micro_batch: Any, **options: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            engine.optimizer.zero_grad()
        return native(micro_batch, **options)

    with installed(bench, spec, CASES[0]):
        bench.worker.batchbridge._last = None
        engine.forward_step = forward_step
        try:
            bench.send(samples, members, 3, SPLITS["fixed 1"])
        except BatchDrift as drift:
            said.append(str(drift))
        finally:
            del engine.forward_step
    engine.optimizer.zero_grad()
    return said


def alone(bench: Seeing) -> dict[str, str]:
    """What verl itself, without the layer, ends with: in a micro-batch without any image; and where it packed the
    position numbers of rows of one length, a single row's too."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 2)

    def no_image(data: Any, rows: Sequence[Sample | None]) -> Any:
        data["multi_modal_inputs"] = NonTensorStack(*(NonTensorData({}) for _ in rows))
        return data

    def one_length(data: Any, rows: Sequence[Sample | None]) -> Any:
        places = list(data["position_ids"].unbind())
        data["position_ids"] = torch.nested.as_nested_tensor(places, layout=torch.jagged)
        return data

    said, native = {}, bench.sent
    for name, changed, kept in (("no image", no_image, samples), ("one length", one_length, [samples[0]] * 2)):
        bench.sent = lambda data, rows, changed=changed: changed(native(data, rows), rows)  # type: ignore[method-assign]
        try:
            bench.send(kept, members, 2, SPLITS["fixed 1"])
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
        finally:
            bench.sent = native  # type: ignore[method-assign]
            bench.worker.engine.optimizer.zero_grad()
    return said


def images(bench: Seeing) -> dict[str, Any]:
    return {
        "wrapped": list(wrapped(bench)),
        "other pictures": other_pictures(bench),
        "drifts": drifts(bench),
        "alone": alone(bench),
    }
