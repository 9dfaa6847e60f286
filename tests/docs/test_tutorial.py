"""The tutorial's adapter keeps the contract that the tutorial gives it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_adapter_of_tutorial_md_keeps_its_contract(repository: Path, tmp_path: Path) -> None:
    text = (repository / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (tmp_path / "test_tutorial.py").write_text("\n".join(BLOCK.findall(text)), encoding="utf-8")
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "."]
    own = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\d{3} passed", done.stdout), done.stdout[-400:]
