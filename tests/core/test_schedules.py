"""One text for one schedule of the learning rate, whatever a framework calls it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from batchbridge.kit.schedules import schedule_parts, schedule_text, share_of_peak, transformers_name

FLOOR = 'cosine_with_min_lr {"min_lr_rate": 0.1}'


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("cosine", None, "cosine"),
        ("cosine", {"num_cycles": 0.5}, "cosine"),
        ("cosine", {"num_cycles": 1.0}, 'cosine {"num_cycles": 1.0}'),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1}, FLOOR),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 0.5, "min_lr": None}, FLOOR),
        ("cosine_with_min_lr", {"min_lr": 1e-7}, FLOOR),
        ("cosine_with_min_lr", {"min_lr_rate": 0}, "cosine"),
        ("constant_with_warmup", {"anything": 1}, "constant"),
        ("polynomial", {"power": 1.0, "lr_end": 0.0}, 'polynomial {"lr_end": 0.0}'),
        ("linear", {"b": 1, "a": 2}, 'linear {"a": 2, "b": 1}'),
    ],
)
def test_a_schedule_has_one_text(name: str, arguments: dict[str, Any] | None, text: str) -> None:
    assert schedule_text(name, arguments, learning_rate=1e-6) == text


@pytest.mark.parametrize("text", ["cosine", FLOOR, 'linear {"a": 2}'])
def test_the_parts_of_a_text_make_it_again(text: str) -> None:
    assert schedule_text(*schedule_parts(text)) == text


@pytest.mark.parametrize("text", ["cosine {", "cosine [1]", "cosine 0.1"])
def test_arguments_that_are_no_mapping_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|mapping"):
        schedule_parts(text)


@pytest.mark.parametrize("strange", ["text", [1], 7, {1: 2, "a": 3}, {"min_lr": "a"}, {"min_lr_rate": math.nan}, {}])
@pytest.mark.parametrize("name", ["cosine_with_min_lr", "linear", "constant_with_warmup"])
def test_no_argument_makes_a_text_raise(name: str, strange: object) -> None:
    assert schedule_text(name, strange, learning_rate=0.0).startswith(name.removesuffix("_with_warmup"))


def test_a_rate_is_the_share_of_the_peak_that_people_write() -> None:
    assert 3e-7 / 3e-6 != 0.1
    assert share_of_peak(3e-7, 3e-6) == 0.1
    assert share_of_peak(3e-7, 0.0) == 0.0  # a peak of 0 has no shares


def test_a_constant_rate_warms_up_under_another_name_in_transformers() -> None:
    assert [transformers_name("constant", warms_up=warms_up) for warms_up in (False, True)] == [
        "constant",
        "constant_with_warmup",
    ]


@pytest.mark.parametrize("name", ["constant", "constant_with_warmup"])
def test_a_constant_schedule_takes_no_arguments_of_any_kind(name: str) -> None:
    assert schedule_text(name, "ppo") == "constant"
