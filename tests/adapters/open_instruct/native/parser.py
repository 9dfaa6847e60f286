"""What `test_parser_open_instruct` runs: grpo_fast.py's own parser, asked for every option with every word of `WORDS`.

    PYTHONPATH=CHECKOUT python parser.py FOLDER

Leaves option to the words that it takes in FOLDER/parser.json; "" stands for no word at all.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from batchbridge_on_cpu.open_instruct import cpu

WORDS = ("", "None", "0", "-1", "1", "2", "1.0", "0.5", "1e-3", "true", "no", "text", "low", "hf", "last", "ulysses")


def main(folder: str) -> None:
    """See the module."""
    cpu.start()
    from open_instruct import data_loader, grpo_utils
    from open_instruct import grpo_fast as script

    groups = (script.TokenizerConfig, script.ModelConfig, data_loader.StreamingDataLoaderConfig, data_loader.VLLMConfig)
    parser = script.ArgumentParserPlus((grpo_utils.GRPOExperimentConfig, *groups, script.EnvsConfig))

    def takes(option: str, word: str) -> bool:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parser.parse_args(["--model_name_or_path", "m", f"--{option}", *([word] if word else [])])
        except SystemExit:
            return False
        return True

    options = dict.fromkeys(action.dest for action in parser._actions if action.dest != "help")
    found = {option: [word for word in WORDS if takes(option, word)] for option in options}
    (Path(folder) / "parser.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
