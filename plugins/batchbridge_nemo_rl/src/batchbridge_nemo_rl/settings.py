"""NeMo-RL's settings. `settings.json` is the table: kind, the value in examples/configs/grpo_math_1B.yaml (which the
command takes without --config) and, where it has one of its own, its canonical field; `others`, settings of the groups
in which a stranger is an error, that decide nothing here; `follows`, interpolations in that file, with the
settings that they name, or whose product they are.

Source: NeMo-RL v0.7.0 (81aa43dda), examples/configs, and main (7ea279abf).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.kit.clipping import canonical_bound, native_bound
from batchbridge.kit.key_table import Key, Together, Unsayable, recorded
from batchbridge.kit.kinds import anything, flag, named, natural, optional, real

FACTS: Mapping[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
STRICT = ("grpo.", "loss_fn.", "cluster.", "policy.dynamic_batching.", "policy.sequence_packing.")
"""Groups in which a setting without a row is an error; NeMo-RL itself ignores it silently."""
ENDLESS = 1_000_000
"""Steps or epochs that no run reaches. Source: grpo_math_1B.yaml."""
MEGATRON, DTENSOR = "policy.megatron_cfg.", "policy.dtensor_cfg."
ESTIMATOR = tuple(
    f"grpo.adv_estimator.{end}" for end in ("name", "normalize_rewards", "use_leave_one_out_baseline", "minus_baseline")
)


def _epochs(canonical: float | None) -> int:
    if canonical is not None and (canonical % 1 or canonical < 1):
        raise Unsayable("NeMo-RL counts whole epochs, from 1")
    return int(canonical or ENDLESS)


KEYS = (
    *recorded(FACTS["settings"]),
    *(Key(key, anything) for key in FACTS["others"]),
    Key(
        "grpo.max_num_steps",
        natural,
        ENDLESS,
        "horizon.rollouts",
        (lambda steps: None if steps >= ENDLESS else steps, lambda rollouts: rollouts or ENDLESS),
        unit="rollouts",
    ),
    Key(
        "grpo.max_num_epochs",
        natural,
        1,
        "horizon.epochs",
        (lambda epochs: None if epochs >= ENDLESS else float(epochs), _epochs),
        unit="epochs",
    ),
    Key("grpo.overlong_filtering", flag, False, "rollout.truncated_completions", {True: "mask", False: "keep"}),
    Key("data.shuffle", flag, True, "order.prompt_shuffle", {True: "epoch_permutation", False: "none"}),
    Key(
        "policy.precision",
        named("bfloat16|float16|float32"),
        "bfloat16",
        "carried.precision",
        {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    ),
    Key(
        "policy.generation.top_k",
        optional(natural),
        None,
        "carried.top_k",
        (lambda k: -1 if k is None else k, lambda k: None if k is None or k < 1 else k),
    ),
    Key(
        "policy.max_grad_norm",
        optional(real(0)),
        1.0,
        "carried.max_gradient_norm",
        (lambda bound: 0.0 if bound is None else canonical_bound(bound), native_bound),
    ),
)
"""Of two rows for one key the later counts."""
TOGETHER = (
    Together(
        ("loss_fn.token_level_loss",),
        ("loss.policy.aggregation", "loss.policy.count_empty"),
        {(True,): ("token_mean", True), (False,): ("sequence_mean", False)},
    ),
    Together(
        ESTIMATOR,
        tuple(f"advantage.{name}" for name in ("baseline", "scale", "epsilon", "ddof")),
        {
            ("grpo", True, True, ...): ("leave_one_out", "group_others", 1e-6, 1),
            ("grpo", True, False, ...): ("group_mean", "group", 1e-6, 1),
            ("grpo", False, True, ...): ("leave_one_out", "none", None, None),
            ("grpo", False, False, ...): ("group_mean", "none", None, None),
            ("gdpo", True, True, ...): ("leave_one_out", "group_others", 1e-6, 1),
            ("gdpo", True, False, ...): ("group_mean", "group", 1e-6, 1),
            ("gdpo", False, True, ...): ("leave_one_out", "none", None, None),
            ("gdpo", False, False, ...): ("group_mean", "none", None, None),
            ("reinforce_plus_plus", ..., ..., True): ("group_mean", "batch", None, 0),
            ("reinforce_plus_plus", ..., ..., False): ("none", "batch", None, 0),
            ("opd", ..., ..., ...): ("none", "none", None, None),
        },
    ),
)
SHAPED_REWARDS: dict[str, dict[str, object]] = {
    "scaling": {"enabled": False, "source_min": 0.0, "source_max": 1.0, "target_min": 0.0, "target_max": 1.0},
    "shaping": {
        "enabled": False,
        "overlong_buffer_length": 128,
        "overlong_buffer_penalty": 1,
        "stop_properly_penalty_coef": None,
        "max_response_length": None,
    },
}
"""Settings that change rewards, with the values that are off."""
OPEN = {
    "grpo.adv_estimator.name": ("advantage", "grpo"),
    "grpo.invalid_tool_call_advantage": ("advantage", None),
    "grpo.malformed_thinking_advantage": ("advantage", None),
    "grpo.seq_logprob_error_threshold": ("objective", None),
    "loss_fn.positive_example_nll_weight": ("objective", 0.0),
    "loss_fn.use_on_policy_kl_approximation": ("objective", False),
    "policy.draft.enabled": ("objective", False),
    "policy.megatron_cfg.mtp_num_layers": ("objective", 0),
    "data.use_multiple_dataloader": ("order", False),
    "data.num_prompts_per_dataloader": ("order", None),
    "async_rl.sampler.name": ("staleness", None),
    **{
        f"grpo.reward_{group}.{end}": ("rollout", off)
        for group, ends in SHAPED_REWARDS.items()
        for end, off in ends.items()
    },
    "grpo.use_best_at_k": ("advantage", None),
    "grpo.use_combined_training": ("advantage", None),
    "grpo.zero_variance_prompt_filtering": ("rollout", None),
}
"""Settings that the schema has no field for: the group of the term, and the value at which they do nothing."""
