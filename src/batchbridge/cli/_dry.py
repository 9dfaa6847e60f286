"""`batchbridge run --dry`: what is said of a trainer that a command has built, in the process that built it.

Its own file: the processes of a launched command import it, and nothing else of the command line.
"""

from __future__ import annotations

import json
from typing import Any


def judged_trainer(trainer: Any) -> str:
    """JSON of the text and the exit code that `batchbridge explain` and `check` would end with, of a trainer."""
    from batchbridge import explain
    from batchbridge.cli.main import EXIT_CODES, UNDECIDED
    from batchbridge.contract import plugins

    name = f"the {type(trainer).__name__} that the command built"
    if not plugins.owners(trainer):
        refused = [adapter.refuses(trainer) for adapter in plugins.adapters().values()]
        reasons = dict.fromkeys(reason for each in refused for reason in each.values())
        said = "; ".join(reasons) or "no installed adapter knows it"
        return json.dumps({"text": f"{name}: UNDECIDED\n  {said}", "code": UNDECIDED})
    found = explain(trainer, name=name)
    return json.dumps({"text": found.text(lang="en"), "code": EXIT_CODES[found.verdict]})


def judged_and_measured(trainer: Any) -> str:
    """The same, with the memory that the trainer's passes take behind it; the exit code is that of the judgement."""
    from batchbridge import CannotAttach
    from batchbridge.contract import plugins

    judged = json.loads(judged_trainer(trainer))
    for adapter in plugins.owners(trainer):
        try:
            if not adapter.measures_passes:
                raise CannotAttach({"measured_passes": not_measured(adapter.framework)})
            said = adapter.measure_passes(trainer)
        except CannotAttach as refusal:
            said = "\n".join(f"the memory of passes is not known: {reason}" for reason in refusal.reasons.values())
        except Exception as error:  # the judgement is said in any case
            said = f"the memory of passes is not known: {type(error).__name__}: {error}"
        judged["memory"] = said
    return json.dumps(judged)


def not_measured(framework: str) -> str:
    """The reason why no pass is measured, and the way out."""
    return f"the adapter of {framework} does not measure passes (run --dry --memory): leave --memory out"


def told_by_receipts(receipts: list[str]) -> tuple[str, int]:
    """The text that is printed, and the exit code, of the receipts of all processes: ranks of one run say the same; of
    different trainers each is printed, and the worst code counts. The memory is that of one process: of ranks, whose
    devices are alike."""
    from batchbridge.cli.main import INVALID

    found = [json.loads(receipt) for receipt in receipts]
    texts = list(dict.fromkeys(str(one["text"]) for one in found))
    texts += [str(one["memory"]) for one in found if "memory" in one][:1]
    codes = {int(one["code"]) for one in found}
    return "\n\n".join(texts), INVALID if INVALID in codes else max(codes)
