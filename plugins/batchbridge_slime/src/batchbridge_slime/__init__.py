"""slime's BatchBridge adapter: its configuration side."""

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

SLIME_TELLS = DetectionFacts(
    own={
        "num_rollout": 0.4,
        "num_steps_per_rollout": 0.4,
        "over_sampling_batch_size": 0.4,
        "rollout_shuffle": 0.3,
        "max_tokens_per_gpu": 0.3,
        "use_dynamic_batch_size": 0.2,
        "hf_checkpoint": 0.2,
    },
    shared=dict.fromkeys(
        ("rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "advantage_estimator"), 0.1
    ),
    programs={
        r"(?s)(?:^|/)train(?:_async)?\.py$.*^--(?:actor-num-nodes|actor-num-gpus-per-node|rollout-batch-size"
        r"|n-samples-per-prompt|num-rollout|num-epoch|hf-checkpoint|colocate)\b": 0.97,
    },
)
"""The facts by which its commands are known: both programs have names that anybody's have, so an option tells."""


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither slime, Megatron nor SGLang."""
    return [AdapterEntry("slime", "batchbridge_slime.config:SlimeAdapter", SLIME_TELLS)]
