"""Ledgers: two ranks of a small run, as `batchbridge.ledger.Writer` writes them, then changed."""

from __future__ import annotations

import functools
import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import mutation

from batchbridge.errors import LedgerError
from batchbridge.ledger import Header, StepRecord, Writer, diff, read_headers, read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import summarise
from batchbridge.ledger.verifying import verify
from batchbridge.meaning.spec import Carried, Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.meaning.weights import Normaliser
from batchbridge.render import json as render_json
from batchbridge.render import ledger as render_ledger

SPEC = Spec(
    topology=Topology(world_size=8),
    rollout=Rollout(prompts_per_rollout=16, completions_per_prompt=8),
    optimizer_step=OptimizerStep(completions_per_step=32),
    loss=Loss(policy=LossTerm(aggregation="token_mean"), kl=LossTerm(aggregation="sequence_mean")),
    horizon=Horizon(epochs=1.0),
    order=Order(prompt_shuffle="none", last_rollout="drop"),
    carried=Carried(learning_rate=1e-3, lr_schedule="cosine", warmup_ratio=0.1),
)
RANKS, STEPS = 2, 3
MOST_STEPS_READ = 50
"""Of a ledger whose numbers say that it has millions."""


@functools.cache
def files() -> tuple[str, ...]:
    """The text of each rank's file."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            for at_step in (0, STEPS):
                started = "resumed" if at_step else "fresh"
                header = Header(
                    framework="trl",
                    framework_version="1.16.0",
                    mode="enforce",
                    spec=SPEC,
                    dataset_size=8,
                    world_size=RANKS,
                    rank=rank,
                    started=started,  # type: ignore[arg-type]  # one of the two words
                    at_step=at_step,
                )
                with Writer(folder, header) as writer:
                    for step in range(at_step, at_step + STEPS):
                        writer.append(_record(step, rank))
        return tuple(path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.jsonl")))


def _record(step: int, rank: int) -> StepRecord:
    return StepRecord(
        step=step,
        epoch=0,
        normaliser=Normaliser(aggregation="token_mean", completions=4, tokens=10, prompts=2),
        learning_rate=1e-3,
        gradient_norm=0.5,
        skipped=False,
        lr_tick=True,
        rollout=[step, step],
        pass_index=[0, 0],
        prompt=[step % 4, step % 4 + 1],
        sample=[rank, rank],
        prompt_fingerprint=["0" * 16, "1" * 16],
        completion_fingerprint=["2" * 16, "3" * 16],
        response_tokens=[3, 0],
        reward=[1.0, float("nan")],
        advantage=[0.7, -0.7],
        old_logprobs=[None, "4" * 16],
        generated_at_step=[step, step],
        weights=[0.1, 0.0],
    )


def make(rng: random.Random) -> list[bytes]:
    """Both files; one of them, or both, changed in a line, in a record's values or in bytes."""
    whole = files()
    changed = [text.encode() for text in whole]
    for rank in rng.choice(((0,), (1,), (0, 1))):
        if rng.random() < 0.5:
            lines = whole[rank].splitlines()
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(mutation.tree(rng, json.loads(lines[at])), separators=(",", ":"))
            changed[rank] = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
        else:
            changed[rank] = mutation.data(rng, mutation.text(rng, [whole[rank]]))
    return changed


def lay(folder: Path, made: list[bytes]) -> tuple[Path, Path]:
    """Folders of the changed ledger and of the good one."""
    for name, contents in (("a", made), ("b", [text.encode() for text in files()])):
        (folder / name).mkdir(exist_ok=True)
        for rank, content in enumerate(contents):
            path = folder / name / f"rank-{rank:05d}.jsonl"
            if name == "a" or not path.exists():
                path.write_bytes(content)
    return folder / "a", folder / "b"


def _summary(folder: Path) -> str:
    """The text of a summary, which has no control character."""
    found = summarise(Ledger(folder), lambda steps, _: itertools.islice(steps, MOST_STEPS_READ))
    said = render_ledger.summary(found)
    if not said.replace("\n", "").isprintable():
        raise AssertionError("a control character is printed")
    return said


def _verification(folder: Path) -> str:
    """The text of what is recomputed, which has no control character."""
    said = render_ledger.verification(verify(folder, lambda steps, _: itertools.islice(steps, MOST_STEPS_READ)))
    if not said.replace("\n", "").isprintable():
        raise AssertionError("a control character is printed")
    return said


def act(laid: tuple[Path, Path]) -> Any:
    """Shown and compared; what is wrong with a ledger is a `LedgerError` that says where."""
    changed, good = laid
    for read in (
        lambda: read_headers(changed),
        lambda: [render_json.plain(step) for step in itertools.islice(read_steps(changed), MOST_STEPS_READ)],
        lambda: diff(changed, good).text(),
        lambda: diff(good, changed, exact=True).to_dict(),
        lambda: _verification(changed),
        lambda: _summary(changed),
    ):
        try:
            render_json.dumps(read())
        except LedgerError as error:
            if not error.what.strip():
                raise AssertionError("refused without a reason") from error
