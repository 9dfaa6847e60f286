"""The pages' pictures are what the code draws now, and say what the plan and the weights say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from batchbridge import Plan
from batchbridge.meaning.micro_batches import partition
from batchbridge.meaning.spec import (
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
)
from batchbridge.playground.same_number import same_number
from batchbridge.render.pictures import NOWHERE, WHERE, WIDEST, plan_picture
from batchbridge_on_cpu.scripts import module_at

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing(repository: Path) -> ModuleType:
    return module_at(repository / "docs" / "make_pictures.py", "make_pictures")


def notes(svg: str) -> list[str]:
    """What the boxes of a picture say."""
    return [str(title.text) for title in ElementTree.fromstring(svg).iterfind(f"{SVG}rect/{SVG}title")]


def test_the_committed_pictures_are_what_is_drawn_now(drawing: ModuleType, repository: Path) -> None:
    folder = repository / "docs" / "pictures"
    assert {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()} == drawing.pictures()


def test_every_picture_has_its_place_in_a_page_and_words_beside_it(drawing: ModuleType, repository: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (repository / "docs").glob("*.md"))
    shown = re.findall(r"!\[([^\]]+)\]\(pictures/([a-z_]+\.svg)\)", text)
    assert {file for _, file in shown} == set(drawing.pictures())


def test_the_picture_of_the_readme_has_a_bar_for_each_framework_with_the_number_that_its_adapter_reads(
    drawing: ModuleType, repository: Path
) -> None:
    rows = same_number(drawing.BATCH, drawing.GROUP, drawing.DEVICES)
    sizes = {row.title: row.completions or 0 for row in rows}
    assert notes(drawing.batch_picture()) == [f"{name}: {size:,} completions" for name, size in sizes.items()]
    assert len(sizes) == 5
    assert min(sizes.values()) == drawing.BATCH  # nobody means less than completions
    assert len(set(sizes.values())) > 2  # else there is nothing to show
    assert "![" in (text := (repository / "README.md").read_text(encoding="utf-8"))
    assert "](docs/pictures/batch_size.svg)" in text


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("span", ["none", "epoch"])
def test_a_plan_s_picture_has_every_completion_in_its_step(passes: int, span: str) -> None:
    spec = Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=3, completions_per_prompt=2),
        optimizer_step=OptimizerStep(
            completions_per_step=4,
            passes_per_rollout=passes,
            rollout_shuffle="completions",
            step_may_span=span,  # type: ignore[arg-type]  # one of its values
        ),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=2),
        order=Order(seed=1, last_optimizer_step="drop"),
    )
    plan = Plan(spec, 7)
    told = Counter(notes(plan_picture(plan, rollouts=2)))
    expected: Counter[str] = Counter()
    for step in plan.steps():
        for member in step.members:
            if member.rollout < 2:
                expected[f"prompt {member.prompt}, sample {member.sample}: optimizer step {step.index}"] += 1
    trained = Counter({note: count for note, count in told.items() if "never" not in note})
    assert trained == expected
    assert sum(told.values()) == 2 * passes * 6


def of_devices(prompts: int, group: int, micro_batch: MicroBatch) -> Plan:
    spec = Spec(
        topology=Topology(world_size=4, tensor_parallel=2),
        rollout=Rollout(prompts_per_rollout=prompts, completions_per_prompt=group),
        optimizer_step=OptimizerStep(completions_per_step=prompts * group // 2),
        micro_batch=micro_batch,
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
        order=Order(seed=1),
    )
    return Plan(spec, 2 * prompts)


@pytest.mark.parametrize(("prompts", "group"), [(32, 16), (2, 256), (512, 1), (4, 2)])
def test_a_plan_s_picture_is_never_wider_than_1200_pixels_and_lacks_nothing(prompts: int, group: int) -> None:
    svg = plan_picture(of_devices(prompts, group, MicroBatch(completions_per_device=4)))
    root = ElementTree.fromstring(svg)
    assert float(root.get("width", "inf")) <= WIDEST == 1200
    boxes = [box for box in root.iterfind(f"{SVG}rect") if box.get("class") != "ground"]
    assert max(float(box.get("x", "inf")) + float(box.get("width", "inf")) for box in boxes) <= WIDEST
    assert len(notes(svg)) == len(set(notes(svg))) == 2 * prompts * group


def test_every_completion_has_the_device_and_micro_batch_that_deals_it() -> None:
    plan = of_devices(4, 2, MicroBatch(completions_per_device=1))
    svg = plan_picture(plan, rollouts=1)
    expected = set()
    for step in (plan.step(0), plan.step(1)):
        for device, micro_batches in enumerate(partition([1] * 4, ranks=2, completions_per_device=1)):
            for number, (row,) in enumerate(micro_batches):
                assert row is not None
                _, _, prompt, sample = step.members[row]
                named = f"prompt {prompt}, sample {sample}: optimizer step {step.index}"
                expected.add(f"{named}, device {device}, micro-batch {number}")
    assert set(notes(svg)) == expected
    assert WHERE in svg


def test_a_token_budget_leaves_devices_open_and_the_picture_says_so() -> None:
    svg = plan_picture(of_devices(4, 2, MicroBatch(tokens_per_device=4096)))
    assert "device" not in "".join(notes(svg))
    assert NOWHERE in svg


@pytest.mark.parametrize(("devices", "size", "untrained"), [(2, 2, False), (1, 3, True)])
def test_a_plan_s_picture_says_what_its_colours_stand_for(devices: int, size: int, untrained: bool) -> None:
    spec = Spec(
        topology=Topology(world_size=devices),
        rollout=Rollout(prompts_per_rollout=2, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=size, step_may_span="none"),
        micro_batch=MicroBatch(completions_per_device=1),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
        order=Order(seed=42, last_optimizer_step="drop"),
    )
    plan = Plan(spec, 4)
    steps = sorted({step.index for rollout in (0, 1) for step in plan.steps_using(rollout)})
    words = re.findall(r">(step \d+|device \d+|never trained)<", plan_picture(plan))
    wanted = [f"step {step}" for step in steps] + ["never trained"] * untrained
    assert words == wanted + [f"device {device}" for device in range(devices)]
