"""One meaning of batch size for every RL fine-tuning framework.

Everything here is loaded when it is first used: `import batchbridge` imports no other module.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchbridge.adapter import Adapter
    from batchbridge.attach import unwrap, wrap
    from batchbridge.attachment import Attachment
    from batchbridge.between.convert import Conversion, FieldReport, convert
    from batchbridge.between.diff import Comparison, Difference, diff
    from batchbridge.between.doctor import Diagnosis, doctor
    from batchbridge.between.scale import Choice, Scaling, scale
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
    from batchbridge.findings import Finding, Fix, Where
    from batchbridge.hookspecs import hookimpl
    from batchbridge.ledger.comparing import LedgerDiff
    from batchbridge.plan import Plan
    from batchbridge.reading import read
    from batchbridge.reading_types import Behaviour, Provenance, Reading, Source, Written
    from batchbridge.reports import Check, Explanation, check, explain
    from batchbridge.spec import Spec

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
    "Explanation",
    "FieldReport",
    "Finding",
    "Fix",
    "LedgerDiff",
    "LedgerError",
    "LostGradient",
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
    _HOMES = {
        "adapter": ("Adapter", "Behaviour", "Provenance", "Reading", "Source", "Written"),
        "attach": ("Attachment", "unwrap", "wrap"),
        "between.convert": ("Conversion", "FieldReport", "convert"),
        "between.diff": ("Comparison", "Difference", "diff"),
        "between.doctor": ("Diagnosis", "doctor"),
        "between.scale": ("Choice", "Scaling", "scale"),
        "errors": (
            *("BatchBridgeError", "BatchDrift", "CannotAttach", "CannotEdit", "CannotWrite", "LedgerError"),
            *("LostGradient", "PlanError", "Problem", "TooLong"),
        ),
        "findings": ("Finding", "Fix", "Where"),
        "hookspecs": ("hookimpl",),
        "ledger_diff": ("LedgerDiff",),
        "plan": ("Plan",),
        "reading": ("read",),
        "reports": ("Check", "Explanation", "check", "explain"),
        "spec": ("Spec",),
    }

    def __getattr__(name):
        import importlib

        for module, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f"batchbridge.{module}"), name)
        raise AttributeError(f"module 'batchbridge' has no attribute {name!r}")

    def __dir__():
        return __all__
