"""One meaning of batch size for every RL fine-tuning framework.

Everything here is loaded when it is first used: `import batchbridge` imports none of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchbridge.comparing.comparison import Comparison, Difference
    from batchbridge.comparing.convert import Conversion, FieldReport, convert
    from batchbridge.comparing.differences import diff
    from batchbridge.comparing.scale import Choice, Scaling, scale
    from batchbridge.contract.adapter import Adapter
    from batchbridge.contract.attachment import Attachment
    from batchbridge.contract.enforcement import Enforcement, Obstacle
    from batchbridge.contract.hookspecs import hookimpl
    from batchbridge.contract.reading import Behaviour, Provenance, Reading, Source, Written
    from batchbridge.diagnosis import Diagnosis, doctor
    from batchbridge.errors import (
        BatchBridgeError,
        BatchDrift,
        CannotAttach,
        CannotEdit,
        CannotWrite,
        LedgerError,
        LostGradient,
        PlanError,
        Problem,
        TooLong,
    )
    from batchbridge.ledger.comparing import LedgerDiff
    from batchbridge.meaning.findings import Finding, Fix, Where
    from batchbridge.meaning.plan import Plan
    from batchbridge.meaning.spec import Spec
    from batchbridge.reading.read import read
    from batchbridge.reports import Check, Explanation, check, explain
    from batchbridge.running.wrap import unwrap, wrap

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Attachment",
    "BatchBridgeError",
    "BatchDrift",
    "Behaviour",
    "CannotAttach",
    "CannotEdit",
    "CannotWrite",
    "Check",
    "Choice",
    "Comparison",
    "Conversion",
    "Diagnosis",
    "Difference",
    "Enforcement",
    "Explanation",
    "FieldReport",
    "Finding",
    "Fix",
    "LedgerDiff",
    "LedgerError",
    "LostGradient",
    "Obstacle",
    "Plan",
    "PlanError",
    "Problem",
    "Provenance",
    "Reading",
    "Scaling",
    "Source",
    "Spec",
    "TooLong",
    "Where",
    "Written",
    "check",
    "convert",
    "diff",
    "doctor",
    "explain",
    "hookimpl",
    "read",
    "scale",
    "unwrap",
    "wrap",
]

if not TYPE_CHECKING:  # a type checker that saw this function would take every misspelt name for an attribute
    from batchbridge.lazily import loader

    __getattr__, __dir__ = loader(__name__)
