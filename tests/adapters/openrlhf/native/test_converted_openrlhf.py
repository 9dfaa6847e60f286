"""What `convert` writes for OpenRLHF starts: its own parser and the checks behind it take the words."""

from __future__ import annotations

import shlex
import types

import openrlhf
import pytest
from real_openrlhf import run

from batchbridge_on_cpu.converted import converted

WRITTEN = converted("openrlhf", openrlhf.__version__ if hasattr(openrlhf, "__version__") else "0.11.2")


def words_of(text: str) -> list[str]:
    """The options of a command, with a value for each variable."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    return ["math.py" if word.startswith("${") else word for word in words[words.index("-m") + 2 :]]


@pytest.mark.parametrize("name", WRITTEN)
def test_openrlhf_takes_a_converted_command(name: str) -> None:
    words = words_of(WRITTEN[name].text["shell"])
    found = run(words)
    assert isinstance(found, types.SimpleNamespace), found
    if name.startswith(("verl", "trl, vLLM")):
        assert found.vllm.num_engines == 8, "an engine on each device that trains"
        assert found.train.colocate_all


def test_every_framework_gives_commands() -> None:
    assert {name.partition(",")[0] for name in WRITTEN} == {"trl", "verl", "easyr1", "open_instruct"}
