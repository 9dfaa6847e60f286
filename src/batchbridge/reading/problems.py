"""The problems of what was given, before a rule is asked: the words of `batchbridge rule CODE`.

Its own file: every reader names these codes, and a page of each says what it is about. docs/cli.md has the same words.
"""

from __future__ import annotations

from collections.abc import Mapping

PROBLEMS: Mapping[str, str] = {
    "BB001": "the file is missing, unreadable, a directory, a pipe or a device",
    "BB002": (
        "the file is too large: settings have a limit of 1 MiB, `training_args.bin` and what it unpacks to a "
        "limit of 4 MiB, a log has a limit of 64 MiB, a data base or an offline run a limit of 256 MiB "
        "(undecided)"
    ),
    "BB003": (
        "the file is not text: neither UTF-8 nor UTF-16 with a byte order mark, or with NUL characters (undecided)"
    ),
    "BB004": "the file is not YAML (JSON for `.json`, TOML for `.toml`)",
    "BB005": "the file is empty or no mapping, or a key is not text",
    "BB006": "a tag (`!!python/object`, `!env`, ...): files are data, tags are not followed",
    "BB007": (
        "more than 50,000 values with aliases expanded, nesting deeper than 64, or an alias inside its own value"
    ),
    "BB008": (
        "a key is set twice (a warning; the last one counts, as in PyYAML), or given twice in a call of Python's "
        "(an error)"
    ),
    "BB009": "a value that cannot be read: a date that does not exist, a number of thousands of digits",
    "BB010": (
        "a launch script runs no training command, or a Python program builds no configuration, that an "
        "adapter recognises (undecided)"
    ),
    "BB011": "a setting depends on what only running the script would tell (undecided)",
    "BB012": (
        "a launch script has several training commands, a Python program several configurations, or a folder "
        "several runs (a warning; undecided where something unknown decides which run)"
    ),
    "BB013": "whether the training command runs is not decided (undecided)",
    "BB014": "a part of a launch script is not read (undecided)",
    "BB015": "another script is sourced or started, and not followed (a warning)",
    "BB016": (
        "an argument runs as a command of its own, because a continuation is broken; or the lines end as on "
        "Windows (a warning)"
    ),
    "BB017": "settings without effect here depend on the environment (a note)",
    "BB018": "a setting without effect here still has a placeholder, `<path_to_your_model>` (a note)",
    "BB019": (
        "a program of the machine decides between two words, and the script is read as where it fails; or a "
        "question to the machine is read as on one that trains (a note)"
    ),
    "BB020": "no adapter recognises the configuration, or it belongs to another tool, by name",
    "BB021": "several adapters do, or none is sure",
    "BB022": "there is no adapter for the named framework",
    "BB024": "no version was named: the one that the configuration's repository pins is taken (a note)",
    "BB025": (
        "no version was named, and the configuration is valid under some known releases only (undecided; in "
        "the formats for programs)"
    ),
    "BB026": (
        "a record of a run that was started: what it says of versions and devices, and which keys are left out (a note)"
    ),
    "BB027": ("a record says some of a run's settings alone, and the others need not be at their defaults (undecided)"),
    "BB036": "what the framework's own constructor says (`check --native`)",
    "BB037": "why the framework's own constructor was not asked, or was asked otherwise (a note)",
    "BB038": (
        "no version was named: the copy of the framework that lies beside the configuration is the yardstick,"
        " with its own settings and defaults; or the program of a TRL recipe (`src/open_r1/grpo.py`) declares settings"
        " of its own, which are not judged (a note)"
    ),
    "BB039": (
        "functions of that copy that decide a number of the run are those of no known release, or its "
        "settings cannot be read (undecided)"
    ),
    "BB041": ("the numbers and the rules rest on a trainer that is not known to be the framework's own (undecided)"),
    "BB042": "the file looks like training by rewards, and no adapter reads it (undecided)",
    "BB043": "the file is a script in a language that is not read (undecided)",
    "BB044": "`diff`, `convert`, `scale` and `plan`: no version was named, and one was taken (a note)",
    "BB045": "the run departs from what the project expects of it, `[tool.batchbridge.expect]`; or leaves it open",
}
"""Code -> what it is about; how bad it is stands at the end, and nothing of an error."""

PROBLEMS_OF_PLUGINS: Mapping[str, str] = {
    "BB023": (
        "an adapter raised in `detect`, `read`, `check`, `owns` or `source_of`; the verdict is undecided "
        "unless something else is wrong"
    ),
    "BB030": "the plugin cannot be imported; keep working",
    "BB031": "two distributions claim one entry-point name; all are loaded, under full names",
    "BB032": ("a hook is misspelt, not marked, a wrapper, or asks for arguments that it does not get; keep working"),
    "BB033": "two adapters claim one framework; both are refused, the rest keep working",
    "BB034": "what is registered is not an usable adapter; keep working",
    "BB035": "a hook raised, or returned something else than findings; their results are kept",
}
"""The same of plugins; docs/plugins.md has these words in two columns."""
