"""The refusal of OpenRLHF 0.8.1 at its first rollout: bounds of the dynamic filter that its parser left as text.

Its own file: one module of `batchbridge_history` per framework.
"""

from __future__ import annotations

from batchbridge.kit.rule_table import GENERATING, Rules, says
from batchbridge_openrlhf.facts import OpenRlhfFacts, fixed

RANGE = "algo.dynamic_filtering_range"


ROWS = Rules[OpenRlhfFacts]()


@ROWS.add(GENERATING, "BB-ORL-024", RANGE, fixes=fixed(algo__dynamic_filtering_range=None))
@says(
    "TypeError: '<' not supported between a text and a number",
    "openrlhf 0.8.1 cli/train_ppo_ray.py: the option has no type",
    ">=0.8.1,<0.8.1.post1",
)
def _text(facts: OpenRlhfFacts) -> str | None:
    if not facts.sizes.filtered or facts[RANGE] == (0.0, 1.0):
        return None
    return f"{facts.name(RANGE)} stays text in 0.8.1, which no score can be compared with"
