"""NeMo-RL's settings. `settings.json` is the table: kind, the value in examples/configs/grpo_math_1B.yaml (which the
command takes without --config) and, where it has one of its own, its canonical field. Beside it:

- `declared`: settings of the groups in which a stranger is an error, that decide nothing here;
- `follows`: interpolations in that file, with the settings that they name, or whose product they are;
- `constants`: what grpo.setup, shard_by_batch_size and DTensorPolicyWorker.train fix;
- `together`: what several settings say;
- `engines`: canonical fields that Megatron and DTensor workers have settings of their own for;
- `open`: settings that the schema has no field for: the group of the term, the value at which they do nothing, and the
  switch without which they do nothing, too.

Source: NeMo-RL v0.7.0 (81aa43dda), examples/configs, and main (7ea279abf).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.kit.clipping import canonical_bound, native_bound
from batchbridge.kit.key_table import Key, Unsayable, recorded, recorded_together
from batchbridge.kit.kinds import flag, natural, one_of, optional, real

FACTS: Mapping[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
ENGINES: Mapping[str, Mapping[str, str]] = FACTS["engines"]
STRICT = ("grpo.", "loss_fn.", "cluster.", "policy.dynamic_batching.", "policy.sequence_packing.")
"""Groups in which a setting without a row is an error; NeMo-RL itself ignores it silently."""
ENDLESS = 1_000_000
"""Steps or epochs that no run reaches. Source: grpo_math_1B.yaml."""
MEGATRON, DTENSOR = "policy.megatron_cfg.", "policy.dtensor_cfg."
MICRO, FORWARD = "policy.train_micro_batch_size", "policy.logprob_batch_size"
COUNTED = {"dynamic_batching": "padded", "sequence_packing": "real"}
"""Ways to cut micro-batches by tokens, and the tokens that they count."""
SURROGATE = ("loss_fn.use_cispo", "loss_fn.disable_ppo_ratio", "loss_fn.force_on_policy_ratio")
SEQUENCES, LEVELS = "loss_fn.sequence_level_importance_ratios", {True: "sequence", False: "token"}
TIS = "loss_fn.truncated_importance_sampling_"
CORRECTION = ("loss_fn.use_importance_sampling_correction", *(f"{TIS}{end}" for end in ("type", "ratio", "ratio_min")))
KL = ("loss_fn.reference_policy_kl_penalty", "loss_fn.reference_policy_kl_type", "loss_fn.use_kl_in_reward")
CLAMPS = {"input": ("kl_log_ratio_clamp", 20.0), "output": ("kl_clamp", 10.0)}
"""Bounds of a KL penalty in the loss, and what they are in a reward, where no setting says them."""
NO_SCORE = {"k1": "k1", "k2": "k2", "k3": "k3"}
WITH_SCORE = {"k1": "k1_with_score", "k2": "k2_with_score", "k3": "k3+"}
"""The loss multiplies the estimate by exp(log p - log p, detached). Source: ClippedPGLossFn.__call__."""
SCHEDULER = "torch.optim.lr_scheduler."
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _ends(native: float) -> float | None:
    return None if native >= ENDLESS else native


def _epochs(canonical: float | None) -> int:
    if canonical is not None and (canonical % 1 or canonical < 1):
        whole = {"horizon.epochs": float(max(round(canonical), 1))}
        raise Unsayable("NeMo-RL counts whole epochs, from 1", nearest=(whole,))
    return int(canonical or ENDLESS)


_STEPS = (_ends, lambda rollouts: rollouts or ENDLESS)
_EPOCHS = (lambda epochs: _ends(float(epochs)), _epochs)
_TOP_K = (lambda k: -1 if k is None else k, lambda k: None if k is None or k < 1 else k)
_BOUND = (lambda bound: 0.0 if bound is None else canonical_bound(bound), native_bound)
KEYS = (
    *recorded(FACTS["settings"]),
    Key("grpo.max_num_steps", natural, ENDLESS, "horizon.rollouts", _STEPS, unit="rollouts"),
    Key("grpo.max_num_epochs", natural, 1, "horizon.epochs", _EPOCHS, unit="epochs"),
    Key("grpo.overlong_filtering", flag, False, "rollout.truncated_completions", {True: "mask", False: "keep"}),
    Key("data.shuffle", flag, True, "order.prompt_shuffle", {True: "epoch_permutation", False: "none"}),
    Key("policy.precision", one_of(*PRECISIONS), "bfloat16", "carried.precision", PRECISIONS),
    Key("policy.generation.top_k", optional(natural), None, "carried.top_k", _TOP_K),
    Key("policy.max_grad_norm", optional(real(0)), 1.0, "carried.max_gradient_norm", _BOUND),
)
"""The rows by key: of two for one key the later counts."""
DECLARED = tuple(recorded(FACTS["declared"]))
TOGETHER = tuple(recorded_together(FACTS["together"]))
