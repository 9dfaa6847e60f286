"""Run by every Python process of a scripted run; see `batchbridge_openrlhf.testing.scripted`."""

from batchbridge_openrlhf.testing import cpu, engines, steps

cpu.start({**engines.HOOKS, **steps.HOOKS})
