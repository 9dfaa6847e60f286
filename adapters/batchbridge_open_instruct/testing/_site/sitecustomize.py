"""Run by every Python process of a scripted run; see `batchbridge_open_instruct.testing.scripted`."""

from batchbridge_open_instruct.testing import cpu, engines

cpu.start(engines.HOOKS)
