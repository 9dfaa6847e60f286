"""NeMo-RL's BatchBridge adapter: its configuration side."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither NeMo-RL nor torch."""
    return [AdapterEntry("nemo_rl", "batchbridge_nemo_rl.config:NemoAdapter")]
