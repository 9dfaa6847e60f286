"""AReaL's BatchBridge adapter: its configuration side."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither AReaL nor torch."""
    return [AdapterEntry("areal", "batchbridge_areal.config:ArealAdapter")]
