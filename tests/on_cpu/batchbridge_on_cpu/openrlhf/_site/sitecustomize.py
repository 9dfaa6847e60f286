"""Run by every Python process of a scripted run; see `batchbridge_on_cpu.openrlhf.scripted`."""

from batchbridge_on_cpu.deepspeed_steps import after_engine
from batchbridge_on_cpu.openrlhf import cpu, engines

cpu.start({**engines.HOOKS, "deepspeed.runtime.engine": after_engine})
