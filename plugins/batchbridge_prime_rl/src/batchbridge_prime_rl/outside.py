"""Effects of prime-rl's settings that the schema has no field for; see `Adapter.decides`.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from collections.abc import Mapping

MODEL = ("*model.name", "*model.lora*", "trainer.model.freeze_moe_router", "trainer.model.debug.*")
PROMPTS = ("*tokenizer.name", "*tokenizer.chat_template", "orchestrator.renderer")

OUTSIDE: Mapping[str, str] = {**dict.fromkeys(MODEL, "the model"), **dict.fromkeys(PROMPTS, "the prompts")}
"""Pattern of settings to what they decide; the first that fits counts. Source: prime-rl 0.8.0 configs."""
