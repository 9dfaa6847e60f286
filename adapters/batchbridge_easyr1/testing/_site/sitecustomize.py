"""At the head of PYTHONPATH: every Python process of a run has the CPU platform."""

from batchbridge_easyr1.testing.cpu import start

start()
