"""Run by every Python process of a scripted run; see `batchbridge_on_cpu.open_instruct.scripted`."""

from batchbridge_on_cpu.open_instruct import cpu, engines, olmo

STEPS = {"deepspeed.runtime.engine": "batchbridge_on_cpu.deepspeed_steps:after_engine"}

cpu.start({**engines.HOOKS, **olmo.HOOKS, **STEPS})
