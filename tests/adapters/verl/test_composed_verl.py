"""The installed package's own defaults: composed by hydra where its files are not the release's. The package is a fake:
a folder with verl's marks, a small configuration, and an `__init__.py` that must never run."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge_verl import composed
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.installed import MARKERS
from batchbridge_verl.settings import defaults_of

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RUN = {
    "algorithm.adv_estimator": "grpo",
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}ppo_mini_batch_size": 16,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
}
PRIMARY = """\
defaults:
  - model_engine: dp
  - actor@actor_rollout_ref.actor: ${model_engine}_actor
  - _self_
data:
  train_batch_size: 96
  site_key: 1
trainer:
  nnodes: 1
  n_gpus_per_node: 8
algorithm:
  adv_estimator: gae
actor_rollout_ref:
  rollout:
    name: ???
    n: 1
    log_prob_use_dynamic_bsz: ${oc.select:actor_rollout_ref.actor.use_dynamic_bsz,False}
    log_prob_micro_batch_size_per_gpu: null
"""
ACTOR_FILE = """\
strategy: fsdp
use_dynamic_bsz: false
clip_ratio_high: 0.3
ppo_mini_batch_size: 256
ppo_micro_batch_size_per_gpu: null
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed verl 0.9.1 whose configuration a site has changed."""
    folder = tmp_path / "site" / "verl"
    for name, first, last in MARKERS:
        if (first or "0") <= "0.9.1" and (last is None or last >= "0.9.1"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch() if "." in Path(name).name else (folder / name).mkdir(exist_ok=True)
    for name, text in {
        "__init__.py": "raise RuntimeError('verl was imported')\n",
        "version/version": "0.9.1\n",
        "trainer/config/ppo_trainer.yaml": PRIMARY,
        "trainer/config/model_engine/dp.yaml": "# @package _global_\nmodel_engine: dp\n",
        "trainer/config/model_engine/megatron.yaml": "# @package _global_\nmodel_engine: megatron\n",
        "trainer/config/actor/dp_actor.yaml": ACTOR_FILE,
        "trainer/config/actor/megatron_actor.yaml": "strategy: megatron\nclip_ratio_high: 0.4\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    importlib.invalidate_caches()
    yield folder
    composed._installed.cache_clear()


@pytest.fixture
def hydra():
    return pytest.importorskip("hydra", reason="hydra is not installed")


def read(values=RUN, version="0.9.1"):
    return VerlAdapter().read(load_source(dict(values)), Context(framework_version=version))


def codes(reading):
    return [finding.code for finding in reading.findings]


def test_a_changed_configuration_of_the_installed_verl_gives_the_defaults(package, hydra):
    reading = read()
    origin = reading.provenance["rollout.prompts_per_rollout"]
    assert reading.spec.rollout.prompts_per_rollout == 96
    assert (origin.origin, origin.detail) == (
        "default",
        "default of verl 0.9.1, composed by hydra from the installed package",
    )
    assert reading.spec.objective.clip_high == 0.3


def test_the_version_of_the_installed_verl_need_not_be_named(package, hydra):
    assert read(version=None).framework_version == "0.9.1"


def test_the_engine_chooses_what_is_composed(package, hydra):
    reading = read({**RUN, "model_engine": "megatron"})
    assert reading.spec.objective.clip_high == 0.4


def test_interpolations_of_the_composed_configuration_follow_the_users_values(package, hydra):
    reading = read({**RUN, f"{ACTOR}use_dynamic_bsz": True})
    assert reading.native[f"{ROLLOUT}log_prob_use_dynamic_bsz"] is True


def test_a_key_of_the_site_is_known_on_a_command_line(package, hydra):
    words = ["python3", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in RUN.items())]
    assert codes(read_words([*words, "data.site_key=2"])) == []
    assert "BB-VERL-003" in codes(read_words([*words, "data.gen_batch_size=2"]))


def read_words(words):
    return VerlAdapter().read(load_source(words), Context(framework_version="0.9.1"))


def test_verl_itself_is_not_imported(package, hydra):
    read()
    assert "verl" not in sys.modules


def test_another_version_takes_the_shipped_table(package):
    origin = read(version="0.8.0").provenance["rollout.prompts_per_rollout"]
    assert origin.detail == "default of verl 0.8.0"


def test_files_as_released_take_the_shipped_table_without_hydra(package, monkeypatch):
    released = composed.digest(package / "trainer" / "config")
    monkeypatch.setattr(composed, "DIGESTS", {"0.9.1": released})
    monkeypatch.setattr(composed, "compose", None)
    reading = read()
    assert reading.spec.rollout.prompts_per_rollout == 1024
    assert reading.provenance["rollout.prompts_per_rollout"].detail == "default of verl 0.9.1, as installed"


def test_without_hydra_a_changed_configuration_is_named_and_the_releases_defaults_are_taken(package, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "hydra" else found(name))
    reading = read()
    (finding,) = [finding for finding in reading.findings if finding.code == "BB-VERL-079"]
    assert "batchbridge[hydra]" in finding.fixes[0].text
    assert reading.spec.rollout.prompts_per_rollout == 1024


def test_a_configuration_that_hydra_cannot_compose_is_named(package, hydra):
    (package / "trainer" / "config" / "actor" / "dp_actor.yaml").unlink()
    reading = read()
    (finding,) = [finding for finding in reading.findings if finding.code == "BB-VERL-079"]
    assert "dp_actor" in finding.message
    assert reading.spec is not None


def test_reading_where_verl_is_not_installed_imports_neither_hydra_nor_omegaconf():
    code = (
        "import sys; from batchbridge.contract.reading import Context; "
        "from batchbridge.reading.files import load_source; "
        "from batchbridge_verl.config import VerlAdapter; "
        f"VerlAdapter().read(load_source({RUN!r}), Context(framework_version='0.9.1')); "
        "sys.exit(', '.join({'hydra', 'omegaconf', 'verl', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_every_known_version_has_a_digest_of_its_files():
    assert set(composed.DIGESTS) == {
        version
        for version in ("0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
        if defaults_of(version, "fsdp")
    }
