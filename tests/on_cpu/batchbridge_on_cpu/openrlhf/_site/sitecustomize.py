"""Run by every Python process of a scripted run; see `batchbridge_on_cpu.openrlhf.scripted`."""

import os

from batchbridge_on_cpu.deepspeed_steps import after_engine
from batchbridge_on_cpu.openrlhf import ahead, attention, engines, ring
from batchbridge_openrlhf.on_cpu import cpu

name = os.environ.get(attention.NAME)
kernel = attention.instead_of_flash(name) if name else {}
if os.environ.get("BATCHBRIDGE_RING"):
    ring.start()
    kernel = ring.HOOKS
cpu.start(
    {**engines.HOOKS, **kernel}
    | {"deepspeed.runtime.engine": after_engine}
    | dict(ahead.HOOKS if os.environ.get(ahead.FOLDER) else {})
)
