"""What the installed verl composes is what the shipped table says, key by key: so the table may stand for it."""

from __future__ import annotations

from importlib import metadata

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from batchbridge.contract.reading import Context
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.patches import Patches
from batchbridge.meaning.spec import MicroBatch
from batchbridge.reading.files import load_source
from batchbridge_verl import composed, runtime
from batchbridge_verl.ahead import PROGRAM_OF, own_defaults
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.installed import installed, package_folder
from batchbridge_verl.meaning import meaning
from batchbridge_verl.settings import BY_KEY, defaults_of, engines_of
from batchbridge_verl.writing import resolved_budget_settings

VERSION = metadata.version("verl")


@pytest.fixture(scope="module")
def folder():
    return package_folder(VERSION) / "trainer" / "config"


def test_the_files_tell_the_version_of_the_metadata():
    found = installed()
    assert (found.project, found.version, found.doubts) == ("verl", VERSION, ())


def test_the_installed_configuration_files_are_those_of_the_release(folder):
    assert composed.digest(folder) == composed.DIGESTS[VERSION]


@pytest.mark.parametrize("engine", engines_of(VERSION))
def test_every_key_that_is_composed_has_the_shipped_default(engine, folder):
    theirs, ours = composed.compose(folder, VERSION, engine), defaults_of(VERSION, engine)
    assert {key for key in theirs.keys() | ours.keys() if theirs.get(key, "-") != ours.get(key, "-")} == {
        "actor_rollout_ref.rollout.prometheus.file"  # a place on the machine, which the table leaves out
    }
    assert len(theirs.keys() & BY_KEY.keys()) > 60


@pytest.mark.parametrize(("config", "program"), sorted(PROGRAM_OF.items()))
def test_a_programs_own_configuration_says_what_ours_says(config, program, folder):
    place = folder.parents[1] / "experimental" / f"{program}_policy" / "config" / f"{config}.yaml"
    said = OmegaConf.to_container(OmegaConf.load(place))
    theirs = {key: value for key, value in settings_in(said) if not key.startswith(("hydra.", "defaults"))}
    assert theirs == own_defaults(program, VERSION)


def test_the_default_of_every_canonical_field_is_the_composed_one(folder):
    minimal = {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
    }
    reading = VerlAdapter().read(load_source(minimal), Context(framework_version=VERSION))
    theirs = composed.compose(folder, VERSION, "fsdp")
    fields = [entry.key for entry in meaning(reading.run).values() if entry.key and entry.key not in minimal]
    different = {
        key: (reading.native[key], theirs[key])
        for key in fields
        if key in theirs and "${" not in str(theirs[key]) and reading.native[key] != theirs[key]
    }
    assert different == {}
    assert len(fields) > 20
    assert {origin.detail for origin in reading.provenance.values() if origin.origin == "default"} == {
        f"default of verl {VERSION}, as installed"
    }


@pytest.mark.parametrize("resolved", [True, False])
def test_a_budget_reaches_every_setting_that_verls_workers_cut_by_and_is_taken_back(folder, resolved):
    with initialize_config_dir(str(folder.resolve()), version_base=None):
        config = compose("ppo_trainer")
    if resolved:  # as main_ppo does before it builds its trainer
        OmegaConf.resolve(config.actor_rollout_ref)
    before, patches = OmegaConf.to_container(config, resolve=False), Patches()
    budgets = MicroBatch(tokens_per_device=4096, forward_tokens_per_device=8192)
    runtime.configure(config, resolved_budget_settings(budgets), patches)
    actor, *scoring = (getattr(config.actor_rollout_ref, name) for name in ("actor", "rollout", "ref"))
    assert (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu) == (True, 4096)
    found = [(group.log_prob_use_dynamic_bsz, group.log_prob_max_token_len_per_gpu) for group in scoring]
    assert found == [(True, 8192)] * 2
    patches.undo()
    assert OmegaConf.to_container(config, resolve=False) == before
