"""Texts that EasyR1 prints and no rule is about; see `Adapter.error_texts`.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

import functools

from batchbridge.kit import ErrorText
from batchbridge.kit.error_texts import setting
from batchbridge_easyr1.rules.printed import DEVICES, SAMPLES

_text = functools.partial(ErrorText, framework="easyr1")

TEXTS: tuple[ErrorText, ...] = (
    _text(
        name="division-by-zero-share",
        versions="EasyR1, verl and their forks (Python's own text, which has many causes)",
        pattern=r"ZeroDivisionError: integer division or modulo by zero",
        rule="global_batch_size (prompts) x rollout.n is at least the devices",
        meaning="if it comes from a batch setting: a share per device was rounded down to 0, and something is divided "
        "by it. Any other division by zero reads the same",
        phase="worker_start",
        source="dvlab-research/Seg-Zero issue 65",
        neighbours=lambda n: setting("worker.actor.global_batch_size", -(-n["devices"] // n["n"]) if n["n"] else 1),
        asks=(DEVICES, SAMPLES),
    ),
)
