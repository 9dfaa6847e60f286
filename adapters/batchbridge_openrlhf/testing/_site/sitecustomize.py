"""Run by every Python process of a scripted run; see `batchbridge_openrlhf.testing.scripted`."""

from batchbridge_openrlhf.testing import cpu, engines

cpu.start(engines.HOOKS)
