"""Makes `toy_adapter` importable, here and in the processes that the contract starts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
