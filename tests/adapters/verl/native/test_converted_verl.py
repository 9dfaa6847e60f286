"""What `convert` writes for verl starts: Hydra composes the words, verl's validator and dataclasses take them."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from importlib import metadata
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from batchbridge_on_cpu.converted import converted
from batchbridge_verl.installed import package_folder

VERSION = metadata.version("verl")
WRITTEN = converted("verl", VERSION)
pytestmark = pytest.mark.filterwarnings("default")  # verl's dependencies deprecate each other


def words_of(text: str) -> list[str]:
    """The overrides of a command, with a value for each variable."""
    words = shlex.split(re.sub(r"\$\{(\w+):\?\}", r"\1", text.replace("\\\n", " ")), comments=True)
    return words[words.index("verl.trainer.main_ppo") + 1 :]


@pytest.mark.parametrize("name", WRITTEN)
def test_verl_takes_a_converted_command(name: str) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    with initialize_config_dir(str(package_folder(VERSION) / "trainer" / "config"), version_base=None):
        config: Any = compose("ppo_trainer", overrides=words_of(WRITTEN[name].text["hydra"]))
    with contextlib.redirect_stdout(io.StringIO()):
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    for key, value in WRITTEN[name].values.items():
        found = OmegaConf.select(config, key)
        assert isinstance(found, str) or found == value or list(found) == list(value), key


def test_every_framework_gives_commands() -> None:
    assert {name.partition(",")[0] for name in WRITTEN} == {"trl", "easyr1", "openrlhf", "open_instruct"}
