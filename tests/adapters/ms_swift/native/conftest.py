"""ms-swift's GRPO trainer on a CPU, with scripted rollouts; whatever ms-swift imports."""

from __future__ import annotations

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LOG_LEVEL", "ERROR")
