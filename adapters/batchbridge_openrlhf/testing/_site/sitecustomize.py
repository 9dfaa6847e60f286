"""Run by every Python process of a scripted run; see `batchbridge_openrlhf.testing.scripted`."""

from batchbridge.testing.deepspeed_steps import after_engine
from batchbridge_openrlhf.testing import cpu, engines

cpu.start({**engines.HOOKS, "deepspeed.runtime.engine": after_engine})
