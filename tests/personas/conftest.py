"""The writers of the pages are scripts, and the tests' modules too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "docs"), str(Path(__file__).parent)]
