"""Effects of slime's options that the schema has no field for; see `Adapter.decides`.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from collections.abc import Mapping

from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import as_text, rollouts, whole_rollouts

PROMPTS = ("prompt-data", "input-key", "apply-chat-template")
REWARDS = ("label-key", "rm-type", "custom-rm-path", "reward-key", "group-rm")

OUTSIDE: Mapping[str, str | SharedSetting] = {
    "hf-checkpoint": SharedSetting("model", "the model", as_text, needed="a folder of the model, as Hugging Face's"),
    "load": "the model",
    "ref-load": "the reference model",
    **dict.fromkeys(PROMPTS, "the prompts"),
    **dict.fromkeys(REWARDS, "the rewards"),
    "save-interval": SharedSetting("save_every", "", rollouts, whole_rollouts),
    "save": "",
    "colocate": "",
    "log-probs-max-tokens-per-gpu": "",
    "moe-router-load-balancing-type": "the model",
    "*-train-params-name-list": "the model",
    "freeze-params-name-list": "the model",
}
"""Pattern of options to what they decide; the first that fits counts. Source: slime 0.3.1 utils/arguments.py."""
