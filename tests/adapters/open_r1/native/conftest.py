"""Launches of Open-R1's kind; each is a process tree of its own, on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the helper module of this folder
