"""Texts that TRL prints and no rule is about; see `Adapter.error_texts`."""

from __future__ import annotations

from functools import partial

from batchbridge import Fix
from batchbridge.kit import ErrorText

_OTHER_KEY = (
    Fix("leave the key out"),
    Fix("the nearest key, or the versions that have it: batchbridge check FILE names them"),
)

_text = partial(ErrorText, framework="trl")

TEXTS: tuple[ErrorText, ...] = (
    _text(
        name="trl-unknown-argument",
        versions=">=0.15",
        pattern=r"Unknown arguments from config file(?:: \[[^]]{1,400}\])?",
        rule="every key of the recipe is a setting of the script, of GRPOConfig or of ModelConfig in this TRL",
        meaning="the recipe has keys that this version lacks: misspelt, or of another version of TRL or transformers",
        phase="config",
        source="trl TrlParser.parse_args_and_config",
        codes=("BB-TRL-003",),
        neighbours=lambda n: _OTHER_KEY,
    ),
    _text(
        name="trl-unexpected-keyword",
        versions=">=0.15",
        pattern=r"GRPOConfig\.__init__\(\) got an unexpected keyword argument '\w{1,100}'",
        rule="every argument of GRPOConfig is one of its settings in this version of TRL",
        meaning="the argument is misspelt, or of another version of TRL or transformers",
        phase="config",
        source="Python's own message about a dataclass",
        codes=("BB-TRL-003",),
        neighbours=lambda n: _OTHER_KEY,
    ),
    _text(
        name="trl-trainer-arguments",
        versions=">=0.15",
        pattern=r"GRPOTrainer\.__init__\(\) (?:got (?:an unexpected keyword argument|multiple values for argument)"
        r"|missing \d{1,2} required positional arguments?|takes from)|No reward source provided\. Pass",
        rule="every argument of GRPOTrainer is one of its constructor's parameters in this version of TRL",
        meaning="the call names an argument that this version lacks, or leaves one out that it needs",
        phase="construction",
        source="Python's own message about a call; trl 1.8.0 GRPOTrainer.__init__",
        codes=("BB-TRL-099",),
        neighbours=lambda n: (
            Fix("write processing_class for tokenizer, and give GRPOConfig what is a setting"),
            Fix("the parameters of your version: batchbridge check FILE.py names them"),
        ),
    ),
    _text(
        name="trl-unsloth-refuses",
        versions=">=0.15",
        pattern=r"Unsloth: (?:Please set a positive non-zero temperature|GRPO needs trl >= [\d.]{1,9})",
        rule="with Unsloth, temperature lies between 0 and 10, and trl is one that its release takes",
        meaning="Unsloth's constructor stands in place of TRL's, and refuses what TRL itself may take",
        phase="construction",
        source="unsloth 2026.10.9 models/rl.py",
        codes=("BB-TRL-100", "BB-TRL-102"),
        neighbours=lambda n: (Fix("temperature = 1.0"), Fix("trl 0.20.0 to 1.15.0, with Unsloth 2026.10.9")),
    ),
)
