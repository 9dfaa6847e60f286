"""The command that OpenRLHF's own page gives for PPO on Ray, from the distribution that is installed."""

from __future__ import annotations

import importlib.metadata
import re

RELEASE = "0.11.2"
GONE = frozenset({"prompt_max_len", "generate_max_len"})
"""Options of RELEASE's page that its own parser lacks."""


def published() -> str:
    """The `ray job submit` of the page, over several lines, as people paste it. Another release has another page:
    say what its own parser lacks."""
    assert importlib.metadata.version("openrlhf") == RELEASE
    page = importlib.metadata.distribution("openrlhf").read_text("METADATA") or ""
    found: list[str] = re.findall(r"^ray job submit (?:.*\\\n)+.*$", page, re.MULTILINE)
    return next(one for one in found if "cli.train_ppo_ray" in one)


def of_its_release() -> str:
    """`published` without the options that its own release lacks."""
    return "\n".join(line for line in published().splitlines() if not any(f"--{key} " in line for key in GONE))
