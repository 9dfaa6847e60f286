"""The README's Python blocks run, top to bottom, in one namespace."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[3] / "README.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_s_python_blocks_run(tmp_path: Path) -> None:
    blocks = FENCE.findall(README.read_text(encoding="utf-8"))
    assert blocks
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
