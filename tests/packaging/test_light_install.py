"""What `pip install .` brings, which the pages below say is light: no torch, no transformers."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "trl", "verl", "openrlhf", "accelerate", "datasets", "ray", "numpy", "hydra-core"}
FEWER_THAN = 20
EXPLAINS = """
import sys

class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {heavy!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Heavy())
from batchbridge.cli.main import main
sys.exit(main(["explain", {recipe!r}, "--framework-version", "1.16.0", "--gpus", "7"]))
"""


def closure(name: str) -> set[str]:
    """The distributions that a plain installation of `name` needs, itself included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = canonicalize_name(waiting.pop())
        if one in found:
            continue
        found.add(one)
        for line in importlib.metadata.requires(one) or ():
            required = Requirement(line)
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                waiting.append(required.name)
    return found


def test_a_plain_installation_is_light() -> None:
    needed = closure("batchbridge")
    assert {"click", "pyyaml", "rich", "tree-sitter"} < needed
    assert needed & HEAVY == set()
    assert len(needed) < FEWER_THAN


def test_an_extra_is_not_part_of_it_and_a_heavy_package_would_be_seen() -> None:
    requires = importlib.metadata.requires("batchbridge") or []
    extras = {canonicalize_name(Requirement(line).name) for line in requires if "extra ==" in line}
    assert extras & HEAVY
    assert "pygments" in closure("rich")


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("README.md", "pip install batchbridge  # in a checkout: pip install ."),
        ("docs/newcomer.md", "pip install batchbridge"),
        ("docs/start.md", "pip install ."),
    ],
)
def test_the_page_installs_nothing_else(page: str, command: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"\n```bash\n{command}\n```\n" in text


def test_a_recipe_is_explained_without_any_heavy_package() -> None:
    script = EXPLAINS.format(heavy=HEAVY, recipe=str(ROOT / "examples" / "recipe.yaml"))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "448 completions" in run.stdout
