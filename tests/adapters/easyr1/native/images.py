"""What `test_images_easyr1` runs, one process per rank: EasyR1's real `FSDPWorker.update_actor` on rows with images.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 images.py FOLDER FAMILY [SETTINGS]

FAMILY: of `batchbridge_on_cpu.easyr1.pictures`. SETTINGS: as JSON. Rank 0 leaves what it
measured in FOLDER/images.json.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import contextlib
import copy
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from gradients import CASES, Bench

from batchbridge.errors import BatchDrift
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import Sample, double, relative_error, step_gradient
from batchbridge_easyr1.engine import install, probe, remove
from batchbridge_on_cpu.easyr1 import pictures, workers
from batchbridge_on_cpu.steps import PROMPTS, Case, bar, moved, spec_of

SPLITS = ("fixed 1", "fixed 2", "budget 4")
MEASURED = (0, 3, 4)
"""A step whose rows have two images or one, one without an image, and one with both kinds of rows."""
CHECKED = (CASES[0], CASES[1])
"""Objectives: without and with a KL term, which needs a reference."""
AGGREGATIONS = ("token_mean", "sequence_mean")
OWN = {name: value for name, value in pictures.SETTINGS.items() if name.startswith("worker.")}


class Plain(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model with transformers' own forward, whatever EasyR1 has put into its class. ours: by class."""

    def __init__(self, model: Any, ours: dict[Any, Any]) -> None:
        super().__init__()
        self.model, self._ours = model, ours

    def forward(self, **inputs: Any) -> Any:
        with natively(self._ours):
            return self.model(**inputs)


@contextlib.contextmanager
def natively(ours: dict[Any, Any]) -> Iterator[None]:
    patched = {kind: kind.forward for kind in ours}
    for kind, own in ours.items():
        kind.forward = own
    try:
        yield
    finally:
        for kind, theirs in patched.items():
            kind.forward = theirs


class Seeing(Bench):
    """A bench whose prompts have no, one or two images. trained: 1 for each parameter that is, in their order."""

    def __init__(self, folder: Path, family: str, settings: dict[str, Any]) -> None:
        workers.PROMPT_TOKENS = pictures.SETTINGS["data.max_prompt_length"]
        raw = pictures.policy(family)
        ours = {type(one): type(one).forward for one in (raw, raw.model)}
        pictures.save(folder / "policy", family)
        super().__init__(folder, settings)
        self.policy = Plain(raw, ours)
        self.behind, self.reference = moved(self.policy, 1, 0.015), moved(self.policy, 2, 0.03)
        self.exact, self.rough = double(self.policy), copy.deepcopy(self.policy).eval()
        self.frozen = bool(self.config.model.freeze_vision_tower)
        parts = [(one.numel(), self.frozen and "visual" in name) for name, one in self.policy.named_parameters()]
        self.trained = torch.cat([torch.full((size,), 0.0 if left else 1.0) for size, left in parts])
        self.watched = ""
        self.looked: list[bool] = []
        """Whether each forward pass of this rank was given an image."""
        self.worker.fsdp_module.register_forward_pre_hook(
            lambda module, given, named: self.looked.append("pixel_values" in named), with_kwargs=True
        )

    def expected(
        self, case: Case, spec: Spec, index: int, samples: Sequence[Sample]
    ) -> tuple[torch.Tensor, float, float]:
        """Of the parameters that are trained; zeros elsewhere."""
        gradient, floor, clipped = super().expected(case, spec, index, samples)
        return gradient * self.trained, floor, clipped

    def everyones(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(found, mine)
        return found

    def made(self, plan: Plan, rollout: int, position: int, row: int) -> Sample:
        """With the images of its prompt."""
        prompt = plan.rollout(rollout).prompts[position]
        return self.seen(super().made(plan, rollout, position, row), pictures.pictures_of(prompt))

    def seen(self, sample: Sample, numbers: Sequence[int]) -> Sample:
        """A sample whose prompt shows these pictures. Where each of its tokens stands is left to transformers."""
        text = pictures.SHOWN * len(numbers) + self.script.prompt(sample.group)
        found = self.worker.processor([pictures.picture(one) for one in numbers], [text])
        tensors = {name: found[name] for name in ("pixel_values", "image_grid_thw") if name in found}
        return dataclasses.replace(sample, prompt=found["input_ids"][0].tolist(), inputs=tensors)

    def batch(self, rows: Sequence[Sample | None], places: Sequence[Any], step: int, references: Any) -> Any:
        """With EasyR1's four position numbers of every token, and the images of every row, a filler's too."""
        data = super().batch(rows, places, step, references)
        spare = next(row for row in rows if row is not None)
        prompts = [spare.group if row is None else row.group for row in rows]
        inputs = [(spare if row is None else row).inputs or {} for row in rows]
        newer = "Qwen3" in type(self.worker.processor).__name__
        data.batch["position_ids"] = torch.stack(
            [
                four_positions(self.worker.processor, ids, attended, each.get("image_grid_thw"), newer=newer)
                for ids, attended, each in zip(
                    data.batch["input_ids"], data.batch["attention_mask"], inputs, strict=True
                )
            ]
        )
        columns = data.non_tensor_batch
        columns["uid"] = np.array([f"prompt {prompt}" for prompt in prompts], dtype=object)
        columns["multi_modal_data"] = np.empty(len(rows), dtype=object)
        for row, prompt in enumerate(prompts):
            shown = [pictures.picture(one) for one in pictures.pictures_of(prompt)]
            columns["multi_modal_data"][row] = {"images": shown}
        data.meta_info |= {name: pictures.SETTINGS[f"data.{name}"] for name in ("min_pixels", "max_pixels")}
        data.meta_info["video_fps"] = 2.0
        return data


def four_positions(processor: Any, ids: Any, attended: Any, grid: Any, *, newer: bool) -> Any:
    """As EasyR1's data set and rollout number them: one number of text, and three by EasyR1's own function."""
    if newer:
        from verl.models.transformers.qwen3_vl import get_rope_index
    else:
        from verl.models.transformers.qwen2_vl import get_rope_index
    width = workers.PROMPT_TOKENS
    three = get_rope_index(processor, ids[:width], image_grid_thw=grid, attention_mask=attended[:width])
    start = width - int(attended[:width].sum())
    text = (torch.arange(width) - start).clamp(min=0)
    prompt = torch.cat([text[None], three])
    return torch.cat([prompt, prompt[:, -1:] + torch.arange(1, len(ids) - width + 1)], 1)


def wrapped(bench: Seeing) -> Iterator[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    for case in CHECKED:
        for aggregation in AGGREGATIONS:
            spec = spec_of(case, aggregation)
            plan = Plan(spec, PROMPTS)
            for split in SPLITS:
                install(bench.worker, bench.orders(spec, case))
                probe(bench.worker)
                bench.watched = bench.worker.batchbridge._watch._weight.name
                try:
                    for index in MEASURED:
                        samples, members = bench.step(plan, index)
                        bench.worker.batchbridge._last = None  # steps between are left out
                        bench.looked.clear()
                        bench.send(samples, members, index, split)
                        found = bench.measure(case, spec, index, samples, bench.gradient)
                        yield {"split": split, "looked": bench.everyones(bench.looked), **found}
                finally:
                    remove(bench.worker)


def controls(bench: Seeing) -> dict[str, float]:
    """The gradient of a step against an oracle that is shown other pictures of the same sizes; and against one that
    trains the tower where it is frozen. Error over the bar."""
    spec = spec_of(CASES[0], "token_mean")
    samples, members = bench.step(Plan(spec, PROMPTS), 0)
    install(bench.worker, bench.orders(spec, CASES[0]))
    bench.send(samples, members, 0, "fixed 2")
    remove(bench.worker)
    assert bench.gradient is not None
    _, floor, _ = bench.expected(CASES[0], spec, 0, samples)
    own = step_gradient(bench.exact, samples, term=spec.loss.policy, objective=spec.objective)
    others = [bench.seen(one, [number + 6 for number in pictures.pictures_of(one.group)]) for one in samples]
    expected = step_gradient(bench.exact, others, term=spec.loss.policy, objective=spec.objective)
    wrong = {"other pictures": expected * bench.trained, **({"a trained tower": own} if bench.frozen else {})}
    return {name: relative_error(bench.gradient, gradient) / bar(floor) for name, gradient in wrong.items()}


def dropped(bench: Seeing) -> list[str]:
    """What ends a step without any image whose first micro-batch's gradient is lost, on each rank."""
    spec, index, said, seen = spec_of(CASES[0], "token_mean"), 3, "", []
    install(bench.worker, bench.orders(spec, CASES[0]))
    native = bench.worker.actor._forward_micro_batch

    def forward(*given: Any, **options: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            bench.worker.optimizer.zero_grad()
        return native(*given, **options)

    bench.worker.actor._forward_micro_batch = forward
    samples, members = bench.step(Plan(spec, PROMPTS), index)
    try:
        bench.send(samples, members, index, "fixed 1")
    except BatchDrift as drift:
        said = str(drift)
    finally:
        bench.worker.actor._forward_micro_batch = native
        remove(bench.worker)
        bench.worker.optimizer.zero_grad()
    return bench.everyones(said)


def main(folder: Path, family: str, settings: str = "{}") -> None:
    bench = Seeing(folder, family, {**OWN, **json.loads(settings)})
    found = {
        "version": verl.__version__,
        "wrapped": list(wrapped(bench)),
        "controls": controls(bench),
        "watched": bench.watched,
        "dropped": dropped(bench),
    }
    if bench.rank == 0:
        (folder / "images.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
