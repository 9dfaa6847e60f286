"""The pages' pictures are what the code draws now, and say what the plan and the weights say."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from batchbridge import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.render.pictures import plan_picture

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", repository / "docs" / "make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    sizes = drawing.completions_per_step()
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
