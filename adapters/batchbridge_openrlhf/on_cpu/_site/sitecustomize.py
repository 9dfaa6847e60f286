"""Run by every Python process of `batchbridge try openrlhf`; see `batchbridge_openrlhf.on_cpu.launching`.

Its own file: Python imports it by this name.
"""

from batchbridge_openrlhf.on_cpu import cpu, engines

cpu.start(engines.HOOKS)
