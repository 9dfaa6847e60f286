"""AReaL's BatchBridge adapter: its configuration side."""

from batchbridge import AdapterEntry, DetectionFacts, hookimpl

AREAL_TELLS = DetectionFacts(
    own={
        "gconfig": 0.5,
        "rollout.max_head_offpolicyness": 0.3,
        "rollout.consumer_batch_size": 0.3,
        "actor.kl_ctl": 0.2,
        "train_dataset": 0.2,
    },
    shared={"rollout": 0.1, "actor": 0.1},
    programs={r"^areal\.(?:infra\.)?launcher\.": 1.0},
    file_option="config",
)
"""The facts by which its files are known, and its commands: by the launcher, else by the file that they name."""


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither AReaL nor torch."""
    return [AdapterEntry("areal", "batchbridge_areal.config:ArealAdapter", AREAL_TELLS)]
