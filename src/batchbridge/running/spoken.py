"""The lines that `batchbridge run` says before its command starts, and after it has ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from batchbridge.contract.enforcement import Enforcement
from batchbridge.contract.reading import Reading
from batchbridge.errors import LedgerError
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import is_broken
from batchbridge.meaning.derived import derive
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import WEIGHT_FORMULAS
from batchbridge.running.launch import Launch
from batchbridge.running.outlived import Outliving


def before(own: Reading, enforcement: Enforcement, launch: Launch) -> Iterator[str]:
    """The lines before: what was read, what an optimizer step trains, and where the ledger goes."""
    if own.spec is None:
        yield f"mode {launch.mode}; what is trained is read from the trainer, once the command has built it"
    else:
        version = f" {own.framework_version}" if own.framework_version else ""
        expected = enforcement.evidence if enforcement.verdict == "enforced" else _NOT_KNOWN
        yield f"{own.framework}{version}, mode {launch.mode}; its code: {expected}"
    spec = own.spec if launch.spec is None else Spec.from_dict(launch.spec)
    if spec is not None:
        yield f"{trained(spec, own.dataset_size)}, {'as the command says' if launch.spec is None else _ASKED}"
    yield f"ledger: {launch.ledger}" if launch.ledger else "no ledger is written (--ledger FOLDER)"


def trained(spec: Spec, dataset_size: int | None) -> str:
    """The words on an optimizer step: what it trains, and how many there are."""
    numbers = derive(spec, dataset_size)
    steps, completions = numbers["total_optimizer_steps"], numbers["completions_per_step"]
    many = "as many steps as the dataset gives" if steps is None else f"{steps} steps"
    rows = "the completions of its rollout" if completions is None else f"{completions} completions"
    weight = WEIGHT_FORMULAS[spec.loss.policy.aggregation]
    return f"an optimizer step trains {rows}; a response token weighs {weight}; {many}"


_ASKED = "as it was asked to"
_NOT_KNOWN = "`batchbridge check -v` says what stands in the way"


def after(launch: Launch, code: int) -> Iterator[str]:
    """The lines after: what the ledger has, and what to do with it; where the command died, how the run goes on. None
    where there is no ledger here. code: the command's exit code."""
    if launch.ledger is None or not any(Path(launch.ledger).glob("rank-*.jsonl")):
        return
    folder = shlex.quote(launch.ledger)
    try:
        ledger = Ledger(launch.ledger)
        count = ledger.stop_step - ledger.first_step
        steps = [(bool(step["skipped"]), is_broken(step)) for step in ledger.merged(ledger.first_step)]
    except LedgerError as error:
        yield f"the ledger cannot be read: {error}"
        return
    held = "held against the plan" if launch.mode != "observe" else "observed"
    of_ranks = f", of {len(ledger.files)} ranks" if len(ledger.files) > 1 else ""
    skipped = sum(is_skipped for is_skipped, _ in steps)
    broken = sum(not_finite for _, not_finite in steps)
    said = f", {broken} with a gradient that is not finite" if broken else ""
    yield f"{count} optimizer steps {held}{of_ranks}, {skipped} skipped{said}: `batchbridge ledger verify {folder}`"
    if ledger.unobserved_from is not None:
        yield f"incomplete: {ledger.incomplete}"
    if code:
        yield from _going_on(ledger, code)


def waiting(code: int, left: Sequence[Outliving]) -> str:
    """The line on processes that a command has left, none of which has come to a trainer yet."""
    told = f"{left[0]} goes on" if len(left) == 1 else f"{left[0]} and {len(left) - 1} more go on"
    way = "waiting for a trainer (Ctrl-C ends the waiting alone)"
    return f"the command has ended with exit code {code}, and {told} in the background: {way}"


def in_background(launch: Launch, code: int, trainers: Sequence[Outliving]) -> Iterator[str]:
    """The lines after a command that has left its trainers in the background."""
    said = ", ".join(map(str, trainers))
    yield f"the command has ended with exit code {code}; the training goes on in the background as {said}"
    if launch.ledger is not None:
        folder = shlex.quote(launch.ledger)
        yield f"the ledger goes on in {folder}: `batchbridge ledger show {folder} --follow`"


def _going_on(ledger: Ledger, code: int) -> Iterator[str]:
    """The lines about a run whose command failed: how far its ledger goes, and how it is resumed."""
    from batchbridge.contract import plugins

    header = ledger.headers[-1]
    try:
        total = derive(Spec.from_dict(header["spec"]), header["dataset_size"])["total_optimizer_steps"]
    except (KeyError, TypeError, ValueError, ArithmeticError):  # a plugin's, of another time
        total = None
    if total is not None and ledger.stop_step >= total:
        return
    many = "" if total is None else f" of {total}"
    reaches = f"to optimizer step {ledger.stop_step - 1}" if ledger.stop_step > ledger.first_step else "to no step"
    yield f"the command ended with exit code {code}; the ledger goes {reaches}{many}, counted from 0"
    adapter = plugins.adapters().get(header["framework"])
    if adapter is not None and adapter.resumes and header["mode"] == "enforce":
        yield f"to go on, from the newest checkpoint and in the same ledger: {adapter.resumes} (docs/resume.md)"
