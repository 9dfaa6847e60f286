"""PocketGRPO's BatchBridge adapter: a plugin like any other."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports no torch."""
    return [AdapterEntry("pocketgrpo", "pocketgrpo_batchbridge.config:PocketAdapter")]
