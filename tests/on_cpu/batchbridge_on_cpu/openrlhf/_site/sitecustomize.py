"""Run by every Python process of a scripted run; see `batchbridge_on_cpu.openrlhf.scripted`."""

import os

from batchbridge_on_cpu.deepspeed_steps import after_engine
from batchbridge_on_cpu.openrlhf import ahead, engines, ring
from batchbridge_openrlhf.on_cpu import cpu

if os.environ.get("BATCHBRIDGE_RING"):
    ring.start()
cpu.start(
    {**engines.HOOKS, **(ring.HOOKS if os.environ.get("BATCHBRIDGE_RING") else {})}
    | {"deepspeed.runtime.engine": after_engine}
    | dict(ahead.HOOKS if os.environ.get(ahead.FOLDER) else {})
)
