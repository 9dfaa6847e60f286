"""Every setting of GRPOConfig in a recipe, spelt 24 ways: what TrlParser and GRPOConfig refuse is refused here."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import trl
import yaml
from trl.scripts.grpo import make_parser
from trl_verdicts import retired_rule_of_text

from batchbridge import Finding
from batchbridge.contract.reading import Context, Source
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.settings import TRAINER_GROUPS
from batchbridge_trl.tables import settings_of

SIZES = {"per_device_train_batch_size": 8, "num_generations": 8, "report_to": "none", "use_cpu": True, "bf16": False}
SPELLINGS = (
    *("null", "none", "Null", "0", "-1", "2.5", "'2.5'", "'3'", "1e-3", "true", "false", "no", "'no'", "''"),
    *("steps", "text", "auto", "[1]", "[a]", "[]", "{}", "{a: 1}", "'{\"a\": 1}'", "'{a}'"),
)
KEYS = sorted(key for key, row in settings_of(TRAINER_GROUPS, trl.__version__).items() if not row.fixed)
UNCHECKED = "taken without a check"
"""Values of another type, which go through the parser and fail, or count as something else, later: refused here."""
OF_A_MACHINE = ("ddp_backend", "deepspeed", "tf32")
"""Refused by a process without a group, without DeepSpeed, and without a GPU."""
APART = (("debug", ""), ("liger_kernel_config", ""), ("reward_weights", ["a"]))
"""An empty text: GRPOConfig(debug="") is the default, and dict("") an empty mapping. A list of text: it goes through
the parser, and is not a number for the trainer, which the row of a list of words says in argparse's words."""
PARSER = make_parser()


def judged(key: str, value: Any) -> bool:
    """Whether a verdict is compared. An accelerator_config, fsdp_config that is a text names a file, which may be there
    where the run starts; and an integer is one that is open already, such as the standard output, and is closed."""
    file = key in ("accelerator_config", "fsdp_config") and isinstance(value, (int, str)) and "{" not in str(value)
    return not file and key not in OF_A_MACHINE and (key, value) not in APART


def refused(values: dict[str, Any]) -> str | None:
    """What TrlParser, or the config that it constructs, says against a recipe; None: nothing."""
    said, before = io.StringIO(), [(action, action.default, action.required) for action in PARSER._actions]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            PARSER.set_defaults_with_config(**values)
            PARSER.parse_args_into_dataclasses(args=[])
    except SystemExit:
        return said.getvalue().strip().rpartition("\n")[2]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for action, default, required in before:
            action.default, action.required = default, required
    return None


def findings(values: dict[str, Any]) -> list[Finding]:
    """Errors of phase "config" about a recipe."""
    adapter, source = TrlAdapter(), Source(values=values, path=Path("recipe.yaml"))
    reading = adapter.read(source, Context(framework_version=trl.__version__, world_size=1))
    found = (*reading.findings, *adapter.check(reading))
    return [one for one in found if (one.severity, one.phase) == ("error", "config")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_is_refused_where_the_real_config_is(key: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    compared = 0
    for value in map(yaml.safe_load, SPELLINGS):
        if judged(key, value):
            values = SIZES | {key: value}
            real, ours = refused(values), findings(values)
            checked = [found for found in ours if UNCHECKED not in (found.native or "")]
            # What `check --native` says, and no rule repeats. Elements of `fsdp` fail in texts of Python's own.
            if not ours and (retired_rule_of_text(real) is not None or (key == "fsdp" and real is not None)):
                compared += 1
                continue
            assert bool(ours if real else checked) == (real is not None), (value, real, ours)
            compared += 1
    assert compared or key in OF_A_MACHINE


def test_a_file_of_variables_is_a_mapping() -> None:
    assert [bool(findings(SIZES | {"env": value})) for value in ({"A": "1"}, None, [1], "text")] == [False, *[True] * 3]
