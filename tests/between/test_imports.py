"""The commands between readings cost what `check` costs: no framework, no pydantic, no rich."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toys import plain_spec

CODE = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
import toys
from batchbridge.contract import plugins
from batchbridge.cli.main import main
registry = plugins.load(())
registry.manager.register(toys, "toys")
plugins._installed = lambda: registry
sys.exit(main())
"""
COSTLY = {"torch", "trl", "transformers", "verl", "openrlhf", "ray", "numpy", "pydantic", "rich", "hypothesis"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("diff", "a.json"),
        ("convert", "a.json", "--to", "narrow"),
        ("scale", "a.json", "--world-size", "2"),
        ("doctor", "a.json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_imports_no_framework_and_nothing_that_costs(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"spec": plain_spec().to_dict()}), encoding="utf-8")
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *map(os.path.abspath, filter(None, sys.path))])
    run = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    modules = set(json.loads(run.stderr.splitlines()[-1]))
    assert "batchbridge.cli.main" in modules
    assert not COSTLY & modules
