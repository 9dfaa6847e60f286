"""What adapter authors need to test an adapter; each name imports its module on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchbridge.testing.attaching import AttachContract
    from batchbridge.testing.contract import AdapterContract
    from batchbridge.testing.laws import InvalidCase, ValidCase

__all__ = ["AdapterContract", "AttachContract", "InvalidCase", "ValidCase"]

if not TYPE_CHECKING:  # a type checker that saw this function would take every misspelt name for an attribute
    from batchbridge.lazily import loader

    __getattr__, __dir__ = loader(__name__)
