"""verl's own `validate_config` over the composed configuration, in a child process of `batchbridge check --native`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchbridge import Reading
from batchbridge.kit import NativeCheck
from batchbridge_verl.installed import installed
from batchbridge_verl.run import VerlRun

_CODE = ("_target_", "external_lib", "trust_remote_code", "custom_cls", "name_or_path", "function", "module")
"""Last words of keys that name code of the user's, which nothing runs here."""
_PLACES = ("path", "dir", "files", "tokenizer_path", "model_path", "local_dir")
"""Last words of keys that name files."""
_MODEL = {
    "config.json": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 1},
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a", "pad_token": "a"},
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    },
}
"""A model that stands for the critic's, whose configuration the dataclasses read."""


def question(reading: Reading) -> NativeCheck | None:
    """The user's settings for `build`; None of a configuration that is not `ppo_trainer`'s."""
    run = getattr(reading, "run", None)
    if not isinstance(run, VerlRun) or run.entry not in ("main_ppo", "main_ppo_sync"):
        return None
    said = {key: reading.native[key] for key in reading.given if key in reading.native}
    left_out = sorted(key for key, value in said.items() if _is_code(key, value))
    differences = ["verl's validate_config was run with a small model of two files in the critic's place"]
    if left_out:
        differences.append(f"verl was asked without {', '.join(left_out)}: code, files, or text that is filled in")
    here = installed()
    return NativeCheck(
        place="batchbridge_verl.constructed:build",
        settings={"engine": run.engine, "said": {key: said[key] for key in said if key not in left_out}},
        installed=here.version if here is not None and here.project == "verl" else None,
        differences=tuple(differences),
    )


def _is_code(key: str, value: Any) -> bool:
    words = key.split(".")
    return any(word in _CODE for word in words) or words[-1] in _PLACES or "${" in json.dumps(value, default=str)


def build(settings: Mapping[str, Any], world_size: int | None) -> None:
    """Composes verl's own configuration with the settings, and validates it as its driver does."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf, open_dict

    package = importlib.util.find_spec("verl")
    if package is None or not package.submodule_search_locations:
        raise ImportError("verl is not installed")
    folder = Path(package.submodule_search_locations[0]) / "trainer" / "config"
    by_name = not (folder / "model_engine" / "megatron.yaml").is_file()  # before 0.8.0: a file for each engine
    megatron = settings["engine"] == "megatron"
    words = ["model_engine=megatron"] if megatron and not by_name else []
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_megatron_trainer" if megatron and by_name else "ppo_trainer", overrides=words)
    for name, content in _MODEL.items():
        Path(name).write_text(json.dumps(content), encoding="utf-8")
    with open_dict(config):
        for key, value in settings["said"].items():
            OmegaConf.update(config, key, value, force_add=True)
        config.critic.model.path = config.critic.model.tokenizer_path = str(Path.cwd())
        if str(config.critic.model.get("_target_")).endswith("HFModelConfig"):
            config.critic.model.load_tokenizer = False
    _validate(config)


def _validate(config: Any) -> None:
    penalties = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
    try:
        from verl.utils.config import validate_config
    except ImportError:  # 0.4.0 to 0.5.0: a method of the trainer
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer

        critic = config.algorithm.adv_estimator == "gae"
        asked = SimpleNamespace(config=config, use_critic=critic, use_reference_policy=penalties)
        RayPPOTrainer._validate_config(asked)
        return
    from verl.trainer.ppo.utils import need_critic

    validate_config(config, penalties, need_critic(config))
