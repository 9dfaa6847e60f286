"""OpenRLHF's command line, `python -m openrlhf.cli.train_ppo_ray`, on CPU with scripted rollouts, as tests run it.

    prepare(folder, prompts=12)
    subprocess.run(command(folder, 2), env=environment(folder, 2))

`batchbridge run` may stand before the command; see `batchbridge_openrlhf.on_cpu.launching`.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from batchbridge_openrlhf.on_cpu import launching
from batchbridge_openrlhf.on_cpu.launching import options, prepare

__all__ = ["options", "prepare"]

SITE = Path(__file__).parent / "_site"
"""The folder with `sitecustomize`: what reaches every process."""
environment = functools.partial(launching.environment, site=SITE)


def command(folder: Path, ranks: int, *flags: str, **changes: str) -> list[str]:
    """The command with `options` and `changes` (double underscores stand for dots), then `flags`."""
    chosen = options(folder, ranks) | {name.replace("__", "."): value for name, value in changes.items()}
    return [sys.executable, *launching.words(chosen), *flags]
