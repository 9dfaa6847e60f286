"""The tools with which adapter authors test an adapter; each name imports its module on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # read by `loader`, too: what is imported as itself is offered
    from batchbridge.testing.attaching import AttachContract as AttachContract
    from batchbridge.testing.contract import AdapterContract as AdapterContract
    from batchbridge.testing.evidence import EvidenceContract as EvidenceContract
    from batchbridge.testing.evidence import Token as Token
    from batchbridge.testing.laws import InvalidCase as InvalidCase
    from batchbridge.testing.laws import UndecidedCase as UndecidedCase
    from batchbridge.testing.laws import ValidCase as ValidCase
else:  # a type checker that saw these functions would take every misspelt name for an attribute
    from batchbridge.lazily import loader

    __getattr__, __dir__ = loader(__name__)
