"""Run by every Python process of a scripted run; see `batchbridge_open_instruct.testing.scripted`."""

from batchbridge_open_instruct.testing import cpu, engines

STEPS = {"deepspeed.runtime.engine": "batchbridge.testing.deepspeed_steps:after_engine"}

cpu.start({**engines.HOOKS, **STEPS})
