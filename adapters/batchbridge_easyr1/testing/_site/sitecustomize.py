"""At the head of PYTHONPATH: every Python process of a run has the CPU platform and keeps its steps where asked."""

from batchbridge_easyr1.testing import cpu, steps

cpu.start()
steps.start()
