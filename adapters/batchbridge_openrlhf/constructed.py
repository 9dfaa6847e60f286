"""OpenRLHF's own parser with its checks, in a child process of `batchbridge check --native`."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge import Reading
from batchbridge.kit import NativeCheck
from batchbridge.kit.versions import installed
from batchbridge_openrlhf.writing import argv

_ELSEWHERE = ("use_ms", "logger.wandb.key", "use_wandb")
"""Settings that would load another hub's code, or are secrets."""


def question(reading: Reading) -> NativeCheck:
    """The user's options for `build`."""
    said = {key: reading.native[key] for key in reading.given if key in reading.native and key not in _ELSEWHERE}
    return NativeCheck(
        place="batchbridge_openrlhf.constructed:build",
        settings={"argv": argv(said)[3:]},
        installed=installed("openrlhf"),
        differences=("OpenRLHF's parser and its checks were run, and nothing that stands behind them",),
    )


def build(settings: Mapping[str, Any], world_size: int | None) -> None:
    """Runs the main block of `openrlhf.cli.train_ppo_ray`, from its text, up to the call of `train`: the module itself
    would import Ray and vLLM, which the parser does not need."""
    package = importlib.util.find_spec("openrlhf")
    if package is None or not package.submodule_search_locations:
        raise ImportError("openrlhf is not installed")
    file = Path(package.submodule_search_locations[0]) / "cli" / "train_ppo_ray.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    standard = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) and _is_standard(node)]
    block = next(node for node in reversed(tree.body) if isinstance(node, ast.If))
    body = [node for node in block.body if not _calls_train(node)]
    sys.argv = ["train_ppo_ray.py", *settings["argv"]]
    code = compile(ast.Module(body=[*standard, *body], type_ignores=[]), str(file), "exec")
    exec(code, {"__name__": "__main__"})


def _is_standard(node: ast.Import | ast.ImportFrom) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return all(name.partition(".")[0] in sys.stdlib_module_names for name in names)


def _calls_train(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "train"
