"""docs/testing.md's block of code, run as a project's own test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[3] / "docs" / "testing.md"
MADE = """
import pocketgrpo


def make_trainer(policy, tokenizer, script, micro):
    def answer(prompt, sample):
        return script.completion(prompt, sample), script.loss_mask(prompt, sample), script.reward(prompt, sample)

    prompts = [tokenizer(script.prompt(index))["input_ids"] for index in range(8)]
    return pocketgrpo.PocketTrainer(policy, prompts, answer, updates=2, epochs=2, lr=0.1, micro=micro)
"""


def test_the_page_s_test_passes_with_nothing_but_the_plugin(pytester: pytest.Pytester) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    pytester.makepyfile(MADE + block)
    # A process of its own: in this one pytester would forget what was imported, and torch cannot be imported twice.
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
