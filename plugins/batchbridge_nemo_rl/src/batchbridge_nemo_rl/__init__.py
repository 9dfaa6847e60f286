"""NeMo-RL's BatchBridge adapter: its configuration side."""

from batchbridge import hookimpl

batchbridge_frameworks = ("nemo_rl",)


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither NeMo-RL nor torch."""
    from batchbridge_nemo_rl.config import NemoAdapter

    return [NemoAdapter]
