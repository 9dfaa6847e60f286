"""prime-rl's BatchBridge adapter: its configuration side."""

from batchbridge import hookimpl

batchbridge_frameworks = ("prime_rl",)


@hookimpl
def batchbridge_adapters():  # type: ignore[no-untyped-def]  # pluggy hands it on
    """The adapter; importing it imports neither prime-rl nor torch."""
    from batchbridge_prime_rl.config import PrimeRLAdapter

    return [PrimeRLAdapter]
