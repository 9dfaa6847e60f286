"""The models of transformers that can be read in packed passes (`batchbridge.kit.packing`). Imports nothing of
theirs.

Its own file: it imports no torch, so that `check` can ask it.
"""

from __future__ import annotations

from typing import Any

FAMILIES = ("gemma", "llama", "mistral", "qwen2", "qwen3")
"""`model_type` of the families whose gradients of packed passes were held against the oracle."""
TOLERANCE = {"torch.float32": 1e-3, "torch.float64": 1e-6}
"""The bound of packed from other log-probabilities, by type; `ROUGH` of others, which a slight fault may pass."""
ROUGH = 0.25


def not_proven(config: Any) -> str | None:
    """The reason why no packed pass of a model of this configuration (transformers' own) is proven; None where one
    is."""
    if config.model_type not in FAMILIES:
        return (
            f"packed passes are proven for {', '.join(FAMILIES)}, and this model is of the family {config.model_type}"
        )
    kinds = {*(getattr(config, "layer_types", None) or ())} - {"full_attention"}
    if kinds or (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)):
        return "some of the model's layers attend to a sliding window, for which packed passes are not proven"
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if (kind := scaling.get("rope_type", scaling.get("type"))) in ("dynamic", "longrope"):
        return f"rotary positions of kind {kind} depend on the longest row of a pass"
    return None


def not_packable(config: Any) -> str | None:
    """The reason why a model of this configuration cannot be read in packed passes under sdpa; None where it can."""
    if (why := not_proven(config)) is not None:
        return why
    if config._attn_implementation != "sdpa":
        return f"attention is {config._attn_implementation}, and packed passes are proven here under sdpa alone"
    said = config.to_dict()
    if dropping := [name for name in said if "drop" in name and isinstance(said[name], float) and said[name] > 0]:
        return f"{', '.join(dropping)}: dropout draws other numbers in packed passes; set it to 0"
    return None
