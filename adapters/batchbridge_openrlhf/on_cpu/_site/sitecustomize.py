"""Run by every Python process of `batchbridge try openrlhf`; see `batchbridge_openrlhf.on_cpu.launching`."""

from batchbridge_openrlhf.on_cpu import cpu, engines

cpu.start(engines.HOOKS)
