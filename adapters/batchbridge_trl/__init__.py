"""TRL's GRPO for BatchBridge. Importing this module imports neither TRL nor anything else that takes time."""

from __future__ import annotations

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

OF_SFT = frozenset(
    {
        *("packing", "packing_strategy", "eval_packing", "max_seq_length", "dataset_text_field"),
        *("completion_only_loss", "assistant_only_loss"),
    }
)
"""Keys of TRL's SFTConfig that no GRPOConfig has. Source: trl 0.15.0 to 1.16.0."""
SWIFT = "swift"
"""ms-swift's program."""

_PYTHON = r"\A(.*python[^/\n]*\n)?"
TELLS = DetectionFacts(
    programs={
        # Its parser takes TRL's settings and nothing else.
        rf"{_PYTHON}((.*/)?trl\ngrpo$|-m\ntrl\.scripts\.grpo$|.*trl/scripts/grpo\.py$)": 0.97,
        # Below what is certain: in a script, a GRPO command beside it is the one that is meant.
        rf"{_PYTHON}((.*/)?swift\nrlhf$|.*swift/cli/rlhf\.py$)": 0.9,
        rf"{_PYTHON}((.*/)?trl\nsft$|-m\ntrl\.scripts\.sft$|.*(trl/scripts|open_r1)/sft\.py$)": 0.9,
    },
    own=dict.fromkeys(
        (
            *("num_generations", "steps_per_generation", "generation_batch_size"),
            *("scale_rewards", "max_completion_length", "reward_funcs"),
        ),
        0.35,
    ),
    # One of the first with one of transformers' own is TRL's; the others are anybody's.
    shared=dict.fromkeys(
        (
            *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
            "per_device_eval_batch_size",
        ),
        0.15,
    )
    | dict.fromkeys(
        ("max_steps", "learning_rate", "loss_type", "epsilon_high", "beta", "num_iterations", "use_vllm"), 0.05
    ),
    most=0.9,
    of_other_programs=OF_SFT,
    file_option="config",
    classes=(("trl.", "GRPOConfig"), ("unsloth", "GRPOConfig"), ("", "UnslothGRPOConfig")),
    trainers=(
        ("trl.", "GRPOTrainer"),
        ("", "UnslothGRPOTrainer"),
        ("", "_UnslothGRPOTrainer"),
        ("transformers.", "Trainer"),  # of copies, under whatever name; see `copied`
    ),
)
"""The facts by which a configuration is known to be one of TRL's GRPO."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `trl`, which is imported when it is needed."""
    return [AdapterEntry("trl", "batchbridge_trl.config:TrlAdapter", TELLS)]
