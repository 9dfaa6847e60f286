"""At the head of PYTHONPATH: every Python process of a run has the CPU platform and keeps its steps where asked."""

from batchbridge_on_cpu.easyr1 import cpu, steps

cpu.start()
steps.start()
