"""The lines that `batchbridge run` says before its command starts, and after it has ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from batchbridge.contract.enforcement import Enforcement
from batchbridge.contract.reading import Reading
from batchbridge.errors import LedgerError
from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.derived import derive
from batchbridge.meaning.spec import Spec
from batchbridge.running.launch import Launch


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
        numbers = derive(spec, own.dataset_size)
        steps, completions = numbers["total_optimizer_steps"], numbers["completions_per_step"]
        many = "as many steps as the dataset gives" if steps is None else f"{steps} steps"
        rows = "the completions of its rollout" if completions is None else f"{completions} completions"
        asked = "as the command says" if launch.spec is None else "as it was asked to"
        yield f"an optimizer step trains {rows}, weighed by {spec.loss.policy.aggregation}; {many}, {asked}"
    yield f"ledger: {launch.ledger}" if launch.ledger else "no ledger is written (--ledger FOLDER)"


_NOT_KNOWN = "`batchbridge check -v` says what stands in the way"


def after(launch: Launch) -> str | None:
    """The line after: what the ledger has, and what to do with it; None: there is none here."""
    if launch.ledger is None or not any(Path(launch.ledger).glob("rank-*.jsonl")):
        return None
    folder = shlex.quote(launch.ledger)
    try:
        ranks = len({header["rank"] for header in read_headers(launch.ledger)})
        count, skipped = 0, 0
        for step in read_steps(launch.ledger):
            count, skipped = count + 1, skipped + bool(step["skipped"])
    except LedgerError as error:
        return f"the ledger cannot be read: {error}"
    held = "held against the plan" if launch.mode != "observe" else "observed"
    of_ranks = f", of {ranks} ranks" if ranks > 1 else ""
    return f"{count} optimizer steps {held}{of_ranks}, {skipped} skipped: `batchbridge ledger verify {folder}`"
