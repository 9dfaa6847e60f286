"""PocketGRPO's BatchBridge adapter: a plugin like any other."""

from batchbridge import hookimpl

batchbridge_frameworks = ("pocketgrpo",)  # commands on other frameworks need not ask the hook below


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports no torch."""
    from pocketgrpo_batchbridge.config import PocketAdapter

    return [PocketAdapter]
