"""What `test_converted_open_instruct` runs: the script's own parser, given every command that `convert` writes.

    PYTHONPATH=CHECKOUT python converted_words.py FOLDER

Leaves the name of each command to what the parser's dataclasses hold, or to what it says instead, in
FOLDER/converted_words.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from batchbridge_on_cpu.converted import converted
from batchbridge_on_cpu.open_instruct import cpu

SPOILED = {"a seed of text": ["--seed", "many"], "a group of one": ["--num_samples_per_prompt_rollout", "1"]}
"""Words that are put behind one command: what the parser and its dataclasses must not take."""
KEPT = ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "num_mini_batches", "seed", "response_length")
"""What is compared with the source."""


def main(folder: str) -> None:
    """See the module."""
    written = {name: one.text["argv"] for name, one in converted("open_instruct").items()}
    cpu.start()
    from open_instruct import data_loader, grpo_utils
    from open_instruct import grpo_fast as script

    groups = (script.TokenizerConfig, script.ModelConfig, data_loader.StreamingDataLoaderConfig, data_loader.VLLMConfig)
    parser = script.ArgumentParserPlus((grpo_utils.GRPOExperimentConfig, *groups, script.EnvsConfig))

    def parsed(words: list[str]) -> dict[str, Any] | str:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                arguments, _, _, streaming, engines, _ = parser.parse_args_into_dataclasses(words)
                learners = tuple(arguments.num_learners_per_node)
                script.validate_configs(streaming, engines, learners, arguments.sequence_parallel_size)
        except (SystemExit, ValueError, AssertionError) as refused:
            return f"{refused}: {said.getvalue()[-400:]}"
        held = {**vars(streaming), **vars(arguments)}
        return {key: held[key] for key in KEPT}

    commands = {name: shlex.split(text)[2:] for name, text in written.items()}
    commands |= {name: [*next(iter(commands.values())), *words] for name, words in SPOILED.items()}
    found = {name: parsed(words) for name, words in commands.items()}
    (Path(folder) / "converted_words.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
