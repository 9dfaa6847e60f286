"""What `test_videos_easyr1` runs, one process per rank: EasyR1's real `FSDPWorker.update_actor` on rows with videos.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 videos.py FOLDER FAMILY [SETTINGS]

FAMILY: Qwen2-VL or Qwen2.5-VL. SETTINGS: as JSON. Rows are what EasyR1's own data set makes of them. The frames of a
video are made up, where EasyR1's `process_video` would decode them. One prompt has an image in place of videos: a
worker takes it beside those, and EasyR1's data set has it in no file with videos. Rank 0 leaves what it measured in
FOLDER/videos.json.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from gradients import CASES, Bench
from images import AGGREGATIONS, CHECKED, OWN, SPLITS, Seeing

from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import Sample, relative_error, step_gradient
from batchbridge_easyr1.engine import install, probe, remove
from batchbridge_on_cpu.easyr1 import pictures, videos, workers
from batchbridge_on_cpu.steps import PROMPTS, bar, spec_of

MEASURED = (0, 1, 3, 4)
"""Steps whose rows have two videos or one; one video or an image; one video or none; two or none."""
MIXED = 1
"""The second of them. Where a micro-batch has both kinds, EasyR1's forward runs the tower once for each, and a rank
whose micro-batch has one runs it once, so that ranks meet in other collectives: on several ranks the step has
micro-batches of one row."""
CONTROLLED = 0
FIRST, SECOND = 5, 3
"""Prompts of that step: the first videos of the two have the same size."""


class Watching(Seeing):
    """A bench whose prompts have no, one or two videos, or an image."""

    def __init__(self, folder: Path, family: str, settings: dict[str, Any]) -> None:
        super().__init__(folder, family, settings)
        videos.stand_in()
        self.processor = self.worker.processor = videos.PROCESSORS[family]()
        own = folder / f"prompts-{self.rank}"
        own.mkdir(exist_ok=True)
        self.rows = videos.prompts(own, self.processor)
        self.kinds: list[str] = []
        """What each forward pass of this rank was given."""
        self.worker.fsdp_module.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, module: Any, given: Any, named: dict[str, Any]) -> None:
        names = (("images", "pixel_values"), ("videos", "pixel_values_videos"))
        self.kinds.append(" and ".join(kind for kind, name in names if name in named))

    def made(self, plan: Plan, rollout: int, position: int, row: int) -> Sample:
        """With the videos or images of its prompt."""
        sample = Bench.made(self, plan, rollout, position, row)
        held = self.rows[sample.group]
        prompt = held["input_ids"][held["attention_mask"] == 1].tolist()
        return self.told(dataclasses.replace(sample, prompt=prompt))

    def told(self, sample: Sample, *, easyr1: bool = True, change: Callable[[int], Any] | None = None) -> Sample:
        """A sample with the tensors of its videos or images. Where its tokens stand is left to transformers, but for
        Qwen2-VL, for which EasyR1 counts otherwise: then the oracle is given EasyR1's numbers. change: of a video's
        place among its prompt's, the frames that are shown."""
        numbers = videos.VIDEOS.get(sample.group, ())
        held = [videos.frames(number) if change is None else change(number) for number in numbers]
        found: dict[str, torch.Tensor] = {}
        if held:
            found = dict(self.processor.image_processor(images=None, videos=held, return_tensors="pt"))
        if sample.group in videos.IMAGES:
            shown = [pictures.picture(number) for number in videos.IMAGES[sample.group]]
            found = dict(self.processor.image_processor(images=shown, return_tensors="pt"))
        if "second_per_grid_ts" in self.processor.model_input_names and numbers:
            found["second_per_grid_ts"] = torch.tensor([2.0 / videos.rate(number) for number in numbers])
        elif numbers and easyr1:
            found["position_ids"] = self.positions(sample)
        return dataclasses.replace(sample, inputs=found)

    def positions(self, sample: Sample) -> torch.Tensor:
        """EasyR1's four numbers of each token of a sample, shape (4, 1, tokens)."""
        kept = self.rows[sample.group]["position_ids"][:, -len(sample.prompt) :]
        return _continued(kept, len(sample.completion))[:, None]

    def batch(self, rows: Sequence[Sample | None], places: Sequence[Any], step: int, references: Any) -> Any:
        """With what EasyR1's data set says of every row's prompt, a filler's too."""
        data = Bench.batch(self, rows, places, step, references)
        spare = next(row for row in rows if row is not None)
        prompts = [(spare if row is None else row).group for row in rows]
        width = workers.PROMPT_TOKENS
        for name in ("input_ids", "attention_mask"):
            said = torch.stack([self.rows[prompt][name] for prompt in prompts])
            assert torch.equal(data.batch[name][:, :width], said), name
        longer = data.batch["input_ids"].shape[1] - width
        data.batch["position_ids"] = torch.stack(
            [_continued(self.rows[prompt]["position_ids"], longer) for prompt in prompts]
        )
        columns = data.non_tensor_batch
        columns["uid"] = np.array([f"prompt {prompt}" for prompt in prompts], dtype=object)
        columns["multi_modal_data"] = np.empty(len(rows), dtype=object)
        for row, prompt in enumerate(prompts):
            columns["multi_modal_data"][row] = self.rows[prompt]["multi_modal_data"]
        data.meta_info |= {name: pictures.SETTINGS[f"data.{name}"] for name in ("min_pixels", "max_pixels")}
        data.meta_info["video_fps"] = 2.0
        return data


def _continued(numbers: torch.Tensor, longer: int) -> torch.Tensor:
    """A prompt's position numbers and those of its completion, as EasyR1's rollout goes on."""
    return torch.cat([numbers, numbers[:, -1:] + torch.arange(1, longer + 1)], 1)


def wrapped(bench: Watching) -> Iterator[dict[str, Any]]:
    """Every objective, aggregation and split, step by step."""
    for case in CHECKED:
        for aggregation in AGGREGATIONS:
            spec = spec_of(case, aggregation)
            plan = Plan(spec, PROMPTS)
            for split in SPLITS:
                install(bench.worker, bench.orders(spec, case))
                probe(bench.worker)
                try:
                    for index in MEASURED:
                        if index == MIXED and bench.ranks > 1 and split != "fixed 1":
                            continue
                        samples, members = bench.step(plan, index)
                        bench.worker.batchbridge._last = None  # steps between are left out
                        bench.kinds.clear()
                        bench.send(samples, members, index, split)
                        found = bench.measure(case, spec, index, samples, bench.gradient)
                        yield {"split": split, "looked": bench.everyones(bench.kinds), **found}
                finally:
                    remove(bench.worker)


def controls(bench: Watching) -> dict[str, float]:
    """The gradient of a step against oracles that are shown something else, or that train the tower where it is frozen;
    for Qwen2-VL also against one that counts positions as transformers does. Error over the bar."""
    spec, first, second = spec_of(CASES[0], "token_mean"), videos.VIDEOS[FIRST][0], videos.VIDEOS[SECOND][0]
    samples, members = bench.step(Plan(spec, PROMPTS), CONTROLLED)
    assert {sample.group for sample in samples} == {FIRST, SECOND}
    install(bench.worker, bench.orders(spec, CASES[0]))
    bench.send(samples, members, CONTROLLED, "fixed 2")
    remove(bench.worker)
    assert bench.gradient is not None
    _, floor, _ = bench.expected(CASES[0], spec, CONTROLLED, samples)

    def against(others: Sequence[Sample], trained: Any = bench.trained) -> float:
        expected = step_gradient(bench.exact, others, term=spec.loss.policy, objective=spec.objective)
        assert bench.gradient is not None
        return relative_error(bench.gradient, expected * trained) / bar(floor)

    exchange = {first: second, second: first}
    changes: dict[str, Callable[[int], Any]] = {
        "other videos": lambda number: videos.frames(number + 30),
        "first videos of two prompts exchanged": lambda number: videos.frames(exchange.get(number, number)),
        "frames backwards": lambda number: videos.frames(number).flip(0),
    }
    found = {name: against([bench.told(one, change=change) for one in samples]) for name, change in changes.items()}
    unseen = [dataclasses.replace(one, inputs={"position_ids": bench.positions(one)}) for one in samples]
    found["no videos"] = against(unseen)
    if "second_per_grid_ts" not in bench.processor.model_input_names:
        found["positions of transformers"] = against([bench.told(one, easyr1=False) for one in samples])
    if bench.frozen:
        found["a trained tower"] = against(samples, 1.0)
    return found


def main(folder: Path, family: str, settings: str = "{}") -> None:
    bench = Watching(folder, family, {**OWN, **json.loads(settings)})
    found = {"version": verl.__version__, "wrapped": list(wrapped(bench)), "controls": controls(bench)}
    if bench.rank == 0:
        (folder / "videos.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
