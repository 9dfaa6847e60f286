"""Whether a trainer's configuration lets its FSDP engine share prompts (`shared_prompts`), as the driver can tell.

What the model itself is, a training worker looks at (`shared_prompts.objection`). Imports nothing of verl's or torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchbridge.kit import Request
from batchbridge_verl.settings import holds

OLDEST = "0.9.1"
"""The release whose engine the proofs ran on."""
_ROOT = "actor_rollout_ref."
_ENGINES = ("actor.fsdp_config.", "ref.fsdp_config.")


def _on(value: Any) -> bool:
    return bool(value)


def _several(value: Any) -> bool:
    return value is not None and int(value) > 1


_SPLIT = "a row on several ranks (Ulysses) is not proven with shared prompts; set it to 1"
UNPROVEN: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("model.use_remove_padding", lambda value: not value, "rows are padded; set it to True"),
    *((f"{role}.ulysses_sequence_parallel_size", _several, _SPLIT) for role in ("actor", "ref")),
    *((f"{engine}ulysses_sequence_parallel_size", _several, _SPLIT) for engine in _ENGINES),
    *((f"{engine}pad_to_length", _on, "it pads what lies end to end; set it to False") for engine in _ENGINES),
    *((f"{engine}qat.enable", _on, "quantised weights are not proven; set it to False") for engine in _ENGINES),
    ("model.lora_rank", _on, "LoRA is not proven with shared prompts; set it to 0"),
    ("model.lora_adapter_path", _on, "LoRA is not proven with shared prompts; leave it out"),
    ("model.use_fused_kernels", _on, "fused kernels make log-probabilities inside the model; set it to False"),
    ("model.use_liger", _on, "Liger's kernels are not proven with shared prompts; set it to False"),
    ("model.tiled_mlp.enabled", _on, "tiled layers are not proven with shared prompts; set it to False"),
    ("model.mtp.enable", _on, "several tokens predicted at once are not proven with shared prompts; set it to False"),
    (
        "model.enable_activation_offload",
        _on,
        "offloading activations is not proven with shared prompts; set it to False",
    ),
)
"""Unproven settings below `actor_rollout_ref`: setting, whether its value is in the way, why and what to do."""


def in_the_way(trainer: Any, request: Request) -> str | None:
    """The reason why prompts cannot be shared, all that the configuration has; None where nothing is known."""
    found = [
        f"{_ROOT}{key} = {value}: {why}"
        for key, hinders, why in UNPROVEN
        for value in [_value(trainer.config.actor_rollout_ref, key)]
        if hinders(value)
    ]
    name = "model.override_config.attn_implementation"
    attention = _value(trainer.config.actor_rollout_ref, name) or "flash_attention_2"
    if attention != "sdpa":
        found.append(f"attention is {attention}, and shared prompts are proven under sdpa: set +{_ROOT}{name}=sdpa")
    if _value(trainer.config, "algorithm.rollout_correction.bypass_mode"):
        why = "the sampler's log-probabilities as the old ones are not proven with shared prompts; set it to False"
        found.append(f"algorithm.rollout_correction.bypass_mode = True: {why}")
    if holds(f"<{OLDEST}", str(request.reading.framework_version)):
        found.append(f"shared prompts are proven on verl {OLDEST}, and this is {request.reading.framework_version}")
    return "; ".join(found) or None


def asked_in_vain(trainer: Any, request: Request) -> str | None:
    """The reason why prompts that should be shared cannot; None where they can, or need not."""
    return in_the_way(trainer, request) if request.padding == "free" else None


def _value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = None if config is None else config.get(name)
    return config
