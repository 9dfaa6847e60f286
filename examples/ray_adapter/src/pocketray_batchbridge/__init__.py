"""PocketRay's BatchBridge adapter: a plugin like any other."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither torch nor Ray."""
    return [AdapterEntry("pocketray", "pocketray_batchbridge.config:PocketRayAdapter")]
