"""SkyRL's BatchBridge adapter: its configuration side."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither SkyRL nor torch."""
    return [AdapterEntry("skyrl", "batchbridge_skyrl.config:SkyRLAdapter")]
