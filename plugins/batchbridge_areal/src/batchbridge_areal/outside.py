"""Effects of AReaL's settings that the schema has no field for; see `Adapter.decides`.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from collections.abc import Mapping

from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import as_text

REWARDS = ("actor.reward_scaling", "actor.reward_bias", "actor.overlong_*", "actor.max_new_tokens")
IN_USE = ("*.offload", "*.scheduling_*", "*.experiment_name", "*.trial_name", "*.fileroot", "rollout.*", "cluster.*")

OUTSIDE: Mapping[str, str | SharedSetting] = {
    "actor.path": SharedSetting("model", "the model", as_text, needed="a model's folder, or its name"),
    "train_dataset.*": "the prompts",
    **dict.fromkeys(REWARDS, "the rewards"),
    "actor.use_lora": "the model",
    "actor.lora_*": "the model",
    "actor.target_modules": "the model",
    "actor.peft_type": "the model",
    "actor.init_from_scratch": "the model",
    "actor.is_critic": "the model",
    "tokenizer_path": "the prompts",
    "ref": "the reference model",
    "actor.fsdp": "",
    "actor.mb_spec.*": "",
    "gconfig.*": "how completions are sampled",
    **dict.fromkeys(IN_USE, ""),
}
"""Pattern of settings to what they decide; the first that fits counts. Source: AReaL 1.0.4 api/cli_args.py."""
