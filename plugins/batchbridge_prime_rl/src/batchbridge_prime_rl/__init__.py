"""prime-rl's BatchBridge adapter: its configuration side."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither prime-rl nor torch."""
    return [AdapterEntry("prime_rl", "batchbridge_prime_rl.config:PrimeRLAdapter")]
