"""SkyRL's BatchBridge adapter: its configuration side."""

from batchbridge import hookimpl

batchbridge_frameworks = ("skyrl",)


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither SkyRL nor torch."""
    from batchbridge_skyrl.config import SkyRLAdapter

    return [SkyRLAdapter]
