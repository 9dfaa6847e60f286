"""Settings of a loop that the schema has no field for; see `Adapter.decides`.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from collections.abc import Mapping

from batchbridge.kit import SharedSetting
from batchbridge.kit.shared_settings import as_text

OUTSIDE: Mapping[str, str | SharedSetting] = {
    "base_model": SharedSetting("model", "the model", as_text, needed="a base model of Tinker's, by its name there"),
    "lora_rank": "the model",
}
"""Pattern of settings to what they decide; the first that fits counts."""
