"""OpenRLHF's own parser and its checks, against our table of options and our rules."""

from __future__ import annotations

import json

import pytest
from orl_commands import commands
from orl_outcomes import ACCEPTED, actions_of, named, ours, shape
from real_openrlhf import program, run

from batchbridge_openrlhf.rules import parser
from batchbridge_openrlhf.settings import options_of

VERSION = "0.11.2"
COUNT = 10_000
FEW = 2_500
"""Of every change; the rest by name."""


def test_the_table_has_every_option_of_the_parser_and_no_other_as_it_is_there():
    options = {name: [o.kind, o.default, list(o.choices)] for name, o in options_of(VERSION).items()}
    assert json.loads(json.dumps(options)) == {name: shape(action) for name, action in actions_of(program).items()}


@pytest.mark.parametrize("count", [FEW, pytest.param(COUNT, marks=pytest.mark.by_hand)])
def test_the_first_rule_that_the_parser_names_is_ours_for_every_command_line(count):
    disagreements, outcomes = [], set()
    for argv in commands(7, count, VERSION):
        found = run(argv)
        native = named(found, VERSION) if isinstance(found, str) else ACCEPTED
        outcomes.add(native)
        if native != "BB-ORL-019" and native != (mine := ours(argv, VERSION)):
            disagreements.append((argv, found, mine))
    assert disagreements == []
    reached = {rule.code for rule in parser.RULES} - {"BB-ORL-011"}  # of releases before 0.11
    assert outcomes == {ACCEPTED, "BB-ORL-003", "BB-ORL-004", *reached}


def test_an_agent_counts_as_a_remote_reward():
    assert run(["--train.agent_func_path", "agent.py"]).reward.remote_url == ["agent"]
