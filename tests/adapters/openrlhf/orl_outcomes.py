"""What OpenRLHF's parser says of a command line, and what we say of it, in one form: "accepted", or the code of the
first rule that is named."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Sequence
from unittest import mock

from batchbridge.contract.reading import Context, Source
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_openrlhf.settings import holds

ACCEPTED = "accepted"
NAMED = (
    (r"ambiguous option", "BB-ORL-003"),
    (r"unrecognized arguments", "BB-ORL-003"),
    (r"argument .*: (expected|invalid|ignored explicit)", "BB-ORL-004"),
    (r"takes HIGH or LOW HIGH", "BB-ORL-023"),
    (r"AttributeError: 'NoneType' object has no attribute 'split'", "BB-ORL-025"),
    (r"requires n_samples_per_prompt > 1", "BB-ORL-012"),
    (r"VLM training does not support", "BB-ORL-022"),
    (r"Only support `--packing_samples` with vLLM", "BB-ORL-019"),
    (r"TypeError: '>' not supported between instances of 'NoneType' and 'int'", "BB-ORL-019"),
    (r"Async RLHF is not supported", "BB-ORL-020"),
    (r"partial_rollout(_enable)? requires", "BB-ORL-018"),
    (r"`--eval[._]dataset`", "BB-ORL-021"),
    (r"over-sampling needs async queue", "BB-ORL-013"),
    (r"reward_clip_range\[0\] must be less", "BB-ORL-014"),
    (r"remote_rm_url or agent_func_path must be specified", "BB-ORL-015"),
    (r"n_samples_per_prompt must be greater than 1 when using dynamic filtering", "BB-ORL-016"),
    (r"ZeroDivisionError", "BB-ORL-026"),
    (r"The number of sample batches must be", "BB-ORL-017"),
)
"""What the parser or Python says -> our code."""


def named(native: str, version: str) -> str:
    """The code of the rule that `native` (`ACCEPTED`, argparse's last line, or `Type: message`) names."""
    if native == ACCEPTED:
        return ACCEPTED
    code = next((code for pattern, code in NAMED if re.search(pattern, native)), f"nothing of ours: {native}")
    return "BB-ORL-011" if code == "BB-ORL-012" and holds("<0.11", version) else code


def ours(argv: Sequence[str], version: str) -> str:
    """Our verdict on what the parser would say: the first error that we name for it."""
    adapter = OpenRlhfAdapter()
    source = Source(argv=("openrlhf.cli.train_ppo_ray", *argv))
    reading = adapter.read(source, Context(framework_version=version))
    found = [*reading.findings, *adapter.check(reading)]
    return next((f.code for f in found if f.severity == "error" and f.phase == "config"), ACCEPTED)


def actions_of(program: Callable[[], object]) -> dict[str, argparse.Action]:
    """Every option of the parser that `program` builds, by name, before it parses anything."""
    found: dict[str, argparse.Action] = {}

    def stop(parser: argparse.ArgumentParser, *arguments: object) -> None:
        found.update({action.option_strings[0].lstrip("-"): action for action in parser._actions})
        raise SystemExit

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop), contextlib.suppress(SystemExit):
        program()
    del found["h"]
    return found


def shape(action: argparse.Action) -> list[object]:
    """Kind (as `Option.kind`), default and choices of an option, as JSON has them; the default run name, which holds
    the time of day, is null."""
    flags = {"_StoreTrueAction": "flag", "_StoreFalseAction": "flag_off"}
    listed = {2: "pair" if action.type is float else "texts", "+": "floats", "*": "words"}
    kind = flags.get(type(action).__name__) or listed.get(action.nargs, getattr(action.type, "__name__", "str"))
    default = list(action.default) if isinstance(action.default, (list, tuple)) else action.default
    if action.option_strings[0].endswith("run_name"):
        default = None
    if kind in ("float", "pair", "texts", "floats") and default is not None:  # argparse keeps an int as it is
        default = [float(item) for item in default] if isinstance(default, list) else float(default)
    return [kind, default, list(action.choices or ())]
