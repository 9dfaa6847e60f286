"""The stored values of Open-Instruct's own functions, recorded again from the checkout: nothing of them has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from batchbridge_on_cpu.upstream_values import differences, read

VALUES = Path(__file__).parents[1] / "upstream_values"


def test_the_stored_values_are_what_this_checkout_gives(checkout: Path) -> None:
    paths = [str(checkout), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = subprocess.run(
        [sys.executable, str(VALUES / "record.py"), str(checkout)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    stored, now = read(VALUES / "values.json"), json.loads(done.stdout)
    assert stored["code"] == now["code"], "record.py stores the values of these functions anew"
    assert list(differences(stored["values"], now["values"])) == []
