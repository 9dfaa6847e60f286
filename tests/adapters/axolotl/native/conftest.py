"""axolotl's GRPO trainer on a CPU, with the scripted rollouts of TRL's tests; whatever axolotl imports."""

from __future__ import annotations

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
