"""PocketRay's BatchBridge adapter: a plugin like any other."""

from batchbridge import hookimpl

batchbridge_frameworks = ("pocketray",)  # commands on other frameworks need not ask the hook below


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither torch nor Ray."""
    from pocketray_batchbridge.config import PocketRayAdapter

    return [PocketRayAdapter]
