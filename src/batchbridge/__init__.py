"""One meaning of batch size for every RL fine-tuning framework.

    import batchbridge as bb

    reading = bb.read("recipe.yaml", world_size=8)  # a recipe, a launch script, arguments, or a trainer
    print(reading.verdict, *reading.findings)  # what is wrong with it
    print(reading.spec)  # what it means, in words that every framework shares
    print(bb.convert("recipe.yaml", "verl"))  # the same in another framework
    trainer = bb.wrap(trainer, ledger="runs/a")  # a trainer that trains just that, measured in every step

Everything here is loaded when it is first used: `import batchbridge` imports none of it.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # read by `loader`, too: what is imported as itself is offered
    from batchbridge.comparing.comparison import Comparison as Comparison
    from batchbridge.comparing.comparison import Difference as Difference
    from batchbridge.comparing.convert import Conversion as Conversion
    from batchbridge.comparing.convert import FieldReport as FieldReport
    from batchbridge.comparing.convert import convert as convert
    from batchbridge.comparing.diff_sources import diff as diff
    from batchbridge.comparing.legal_choices import Choice as Choice
    from batchbridge.comparing.scale import Scaling as Scaling
    from batchbridge.comparing.scale import scale as scale
    from batchbridge.contract.adapter import Adapter as Adapter
    from batchbridge.contract.attachment import Attachment as Attachment
    from batchbridge.contract.detection import AdapterEntry as AdapterEntry
    from batchbridge.contract.detection import DetectionFacts as DetectionFacts
    from batchbridge.contract.enforcement import Enforcement as Enforcement
    from batchbridge.contract.enforcement import Obstacle as Obstacle
    from batchbridge.contract.hookspecs import hookimpl as hookimpl
    from batchbridge.contract.reading import Behaviour as Behaviour
    from batchbridge.contract.reading import Provenance as Provenance
    from batchbridge.contract.reading import Reading as Reading
    from batchbridge.contract.reading import Source as Source
    from batchbridge.contract.reading import Written as Written
    from batchbridge.diagnosis import Diagnoses as Diagnoses
    from batchbridge.diagnosis import Diagnosis as Diagnosis
    from batchbridge.diagnosis import doctor as doctor
    from batchbridge.errors import BatchBridgeError as BatchBridgeError
    from batchbridge.errors import BatchDrift as BatchDrift
    from batchbridge.errors import CannotAttach as CannotAttach
    from batchbridge.errors import CannotEdit as CannotEdit
    from batchbridge.errors import CannotWrite as CannotWrite
    from batchbridge.errors import LedgerError as LedgerError
    from batchbridge.errors import LostGradient as LostGradient
    from batchbridge.errors import PlanError as PlanError
    from batchbridge.errors import Problem as Problem
    from batchbridge.errors import TooLong as TooLong
    from batchbridge.ledger.comparing import LedgerDiff as LedgerDiff
    from batchbridge.meaning.findings import Finding as Finding
    from batchbridge.meaning.findings import Fix as Fix
    from batchbridge.meaning.findings import Where as Where
    from batchbridge.meaning.plan import Plan as Plan
    from batchbridge.meaning.spec import Spec as Spec
    from batchbridge.reading.read import read as read
    from batchbridge.reports import Check as Check
    from batchbridge.reports import Explanation as Explanation
    from batchbridge.reports import check as check
    from batchbridge.reports import explain as explain
    from batchbridge.running.wrap import unwrap as unwrap
    from batchbridge.running.wrap import wrap as wrap
else:  # a type checker that saw these functions would take every misspelt name for an attribute
    from batchbridge.lazily import loader

    __getattr__, __dir__ = loader(__name__)
