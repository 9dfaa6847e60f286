"""Unsloth's own classes on a CPU, generated over TRL's as importing it does on a GPU: `nox -s unsloth`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["UNSLOTH_ALLOW_CPU"] = "1"
os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
os.environ["UNSLOTH_COMPILE_LOCATION"] = str(Path(tempfile.mkdtemp()) / "unsloth_compiled_cache")
os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import unsloth  # noqa: F401  # before trl: it replaces classes
from unsloth.models import rl

rl._patch_trl_rl_trainers("grpo_trainer")  # on a CPU PatchFastRL leaves this out
