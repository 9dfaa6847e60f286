"""The oracle's advantages, a statement of its own, against the core's."""

from __future__ import annotations

import itertools
import random
from typing import get_args

import pytest

from batchbridge.meaning.advantages import RULED, group_advantages
from batchbridge.meaning.spec import Advantage, field_type
from batchbridge.testing.oracle import advantages

SCALES = get_args(field_type("advantage.scale"))


@pytest.mark.parametrize(("baseline", "scale", "ddof"), list(itertools.product(RULED, SCALES, (0, 1))))
def test_every_baseline_and_scale_means_the_same_twice(baseline, scale, ddof):
    drawn = random.Random(5)
    rewards = [float(drawn.choice((0, 1, 1, 4))) for _ in range(40)] + [1.0] + [0.0] * 7
    rule = Advantage(baseline=baseline, scale=scale, ddof=ddof, epsilon=1e-4, minimum=-1.5, maximum=2.0)
    groups = [rewards[start : start + 8] for start in range(0, len(rewards), 8)]
    flat = [value for group in group_advantages(groups, rule) for value in group]
    assert advantages(rewards, 8, rule) == pytest.approx(flat, abs=1e-12)
