"""`batchbridge run`: starts a training command with the adapter in every one of its processes."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from batchbridge.cli._input import frameworks_for_completion
from batchbridge.cli.main import INVALID, UNDECIDED
from batchbridge.errors import BatchBridgeError

if TYPE_CHECKING:
    from batchbridge.contract.adapter import Adapter
    from batchbridge.contract.reading import Reading
    from batchbridge.reading.launchers import Stop
    from batchbridge.running.launch import Launch


class _Budget(click.IntRange):
    """A number of tokens, or auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


@click.command()
@click.option(
    "--spec",
    "spec_file",
    type=click.Path(exists=True, dir_okay=False),
    help="The specification (JSON) that the run must follow.",
)
@click.option("--like", metavar="CONFIG", help="Train as this configuration would, which may be another framework's.")
@click.option("--like-version", metavar="VERSION", help="The version of that framework. Default: the installed one.")
@click.option("--sync", is_flag=True, help="Generate every rollout with the weights that are trained on it next.")
@click.option(
    "--mode",
    type=click.Choice(["enforce", "verify", "observe"]),
    default="enforce",
    show_default=True,
    help="enforce: make the run follow its plan; verify: stop it where it departs; observe: only record.",
)
@click.option("--ledger", type=click.Path(file_okay=False), help="Folder that the ledger is written to.")
@click.option(
    "--tokens-per-device",
    metavar="N",
    type=_Budget(min=1),
    help="Micro-batches of at most N tokens, instead of the command's own; auto: found while it runs.",
)
@click.option(
    "--padding",
    type=click.Choice(["padded", "free", "auto"]),
    default="padded",
    show_default=True,
    help="Completions padded to rows, or laid end to end with each prompt once; auto: where that is proven.",
)
@click.option(
    "--report-to",
    type=click.Choice(["trainer"]),
    help="Log completions, response tokens and drift of every step through the trainer's own loggers.",
)
@click.option("--allow", metavar="NAME", multiple=True, help="Accept this refused term as it is; repeat.")
@click.option(
    "--expect-within",
    metavar="SECONDS",
    type=click.IntRange(min=0),
    default=600,
    show_default=True,
    help="Say so where no trainer has been reached by then; 0: never.",
)
@click.option("-v", "--verbose", is_flag=True, help="List every patch of the trainer.")
@click.option("--dry", is_flag=True, help="Train nothing: end once the trainer is built, explain and judge it.")
@click.option("--memory", is_flag=True, help="With --dry: measure the memory that the trainer's passes take, too.")
@click.option("--handed-over", is_flag=True, hidden=True, help="Go on with a launch that was sent with a job.")
@click.option(
    "--framework",
    metavar="NAME",
    shell_complete=frameworks_for_completion,
    help="Framework of COMMAND; detected by default.",
)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    spec_file: str | None,
    like: str | None,
    like_version: str | None,
    sync: bool,
    mode: str,
    ledger: str | None,
    tokens_per_device: int | Literal["auto"] | None,
    padding: str,
    report_to: str | None,
    allow: tuple[str, ...],
    expect_within: int,
    verbose: bool,
    dry: bool,
    memory: bool,
    handed_over: bool,
    framework: str | None,
    words: tuple[str, ...],
) -> int:
    """Run COMMAND so that it trains what its configuration (or --spec, or --like) means.

    Each trainer that COMMAND builds in any of its processes is wrapped before it trains; one that its own script has
    wrapped is left alone. The exit code is the command's own; 2 where its configuration is invalid and nothing was
    started, 4 where it ended well without a trainer that BatchBridge wrapped, or could not have been reached.

    With --dry COMMAND runs until it would train: its trainer is explained and judged as it stands, no optimizer step is
    taken, and the exit codes are those of check (4, too, where no trainer was built). With --memory
    passes over rows of made-up tokens are run there with the trainer's own model: the memory of two sizes is
    extrapolated, and a third is held against it.
    """
    if handed_over:
        return _go_on(words)
    from batchbridge.cli._dry import not_measured
    from batchbridge.contract import plugins
    from batchbridge.meaning.spec import MicroBatch, Spec, Staleness
    from batchbridge.reading import read
    from batchbridge.render.text import check
    from batchbridge.running.asked import no_finding, no_loggers, no_packing
    from batchbridge.running.launch import Launch
    from batchbridge.running.telling import tell

    if spec_file is not None and like is not None:
        raise click.UsageError("give --spec or --like, not both")
    if like_version is not None and like is None:
        raise click.UsageError("--like-version is the version of what --like names")
    if tokens_per_device is not None and mode != "enforce":
        raise click.UsageError(f"--tokens-per-device with --mode {mode}: only enforce cuts steps itself")
    if padding == "free" and mode != "enforce":
        raise click.UsageError(f"--padding free with --mode {mode}: only enforce changes how completions are laid")
    stop = _reachable(words)
    own = read.read(list(words), framework=framework)
    known = own.framework != read.UNKNOWN
    adapters = plugins.adapters()
    # A custom script may say nothing of its framework: the trainer that it builds does.
    asked = [adapters[own.framework]] if own.framework in adapters else [] if known else list(adapters.values())
    hooks = {module: hook for adapter in asked for module, hook in adapter.hooks().items()}
    if not hooks:
        able = ", ".join(name for name, other in adapters.items() if other.hooks()) or "none"
        raise click.UsageError(f"{own.framework}: no adapter that can be launched; those that can: {able}")
    if report_to is not None and asked and not any(adapter.reports for adapter in asked):
        raise click.UsageError(no_loggers(own.framework))
    if padding == "free" and asked and not any(adapter.packs for adapter in asked):
        raise click.UsageError(no_packing(own.framework))
    if tokens_per_device == "auto" and asked and not any(adapter.finds_budgets for adapter in asked):
        raise click.UsageError(no_finding(own.framework))
    if memory and not dry:
        raise click.UsageError("--memory measures a trainer that trains nothing: give --dry, too")
    if memory and asked and not any(adapter.measures_passes for adapter in asked):
        raise click.UsageError(not_measured(own.framework))
    if dry:
        asked_for: dict[str, object] = {"--spec": spec_file, "--like": like, "--sync": sync, "--ledger": ledger}
        asked_for |= {"--allow": allow, "--tokens-per-device": tokens_per_device, "--report-to": report_to}
        if useless := [option for option, value in asked_for.items() if value]:
            raise click.UsageError(f"--dry trains nothing, and {useless[0]} is about training: give one of the two")
        return _dry(
            words,
            Launch(
                framework=own.framework,
                hooks=hooks,
                expect_within=expect_within,
                instead=_MEASURED if memory else _JUDGED,
            ),
            stop,
        )
    if known and own.verdict == "invalid":
        click.echo(check(" ".join(words[:3]), own), err=True)
        return INVALID
    _known(allow, asked)
    _in_script(words)
    spec: Mapping[str, Any] | None = None
    if spec_file is not None:
        spec = _spec(Path(spec_file))
    elif like is not None:
        world_size = None if own.spec is None else own.spec.topology.world_size
        other = read.read(like, version=like_version, world_size=world_size)
        if other.verdict == "invalid" or (other.spec is None and world_size is not None):
            click.echo(check(like, other), err=True)
            return INVALID
        if other.spec is not None:
            # Of a configuration that is read, micro-batches are not part.
            spec = other.spec.replace(micro_batch=MicroBatch()).to_dict()
    elif sync and own.spec is not None:
        spec = own.spec.replace(micro_batch=MicroBatch()).to_dict()
    if sync:
        if spec is None:
            raise click.UsageError("--sync: what the run means is known once its trainer is built; give --spec")
        spec = Spec.from_dict(spec).replace(staleness=Staleness()).to_dict()
    if ledger is not None and any(Path(ledger).glob("rank-*.jsonl")):  # whether it resumes is known at its first step
        anew = "one that starts anew sets it aside, or ends where a checkpoint is left"
        ways = f"a run that is resumed goes on in it, {anew}"
        tell(f"{ledger} has a ledger: {ways}", ledger)
    launch = Launch(
        framework=own.framework,
        hooks=hooks,
        mode=mode,
        spec=spec,
        like=None if like is None or spec is not None else str(Path(like).absolute()),
        like_version=like_version,
        ledger=None if ledger is None else str(Path(ledger).absolute()),
        tokens_per_device=tokens_per_device,
        padding=padding,
        allow=list(allow),
        report_to=report_to,
        expect_within=expect_within,
        verbose=verbose,
    )
    return _run(words, launch, stop, own)


_JUDGED = "batchbridge.cli._dry:judged_trainer"
"""The place of what judges a trainer in its own process."""
_MEASURED = "batchbridge.cli._dry:judged_and_measured"
"""The place of what measures its passes, too."""


def _dry(words: tuple[str, ...], launch: Launch, stop: Stop | None) -> int:
    """The exit code of a run that trains nothing; prints what its trainer was judged as."""
    from batchbridge.cli._dry import told_by_receipts
    from batchbridge.running import command
    from batchbridge.running.telling import tell

    tell("dry: the command runs until it would train; nothing is trained")
    try:
        receipts, code = command.dry_run(words, launch, stop=stop)
    except OSError as error:
        raise click.UsageError(f"{words[0]} cannot be started: {error.strerror}") from None
    if not receipts:
        of = "" if launch.framework == "unknown" else f" of {launch.framework}"
        tell(f"the command ended with exit code {code} without a trainer{of} that was about to train: not judged")
        return UNDECIDED
    text, code = told_by_receipts(receipts)
    click.echo(text)
    return code


def _go_on(words: tuple[str, ...]) -> int:
    """The command of a job that was sent to a cluster, run there with the launch that it was sent with."""
    from batchbridge.reading import read
    from batchbridge.running.launch_jobs import HANDED_OVER, taken_over

    launch = taken_over(os.environ)
    if launch is None:
        raise click.UsageError(f"--handed-over: {HANDED_OVER} is not set; it is `batchbridge run` that starts this")
    if launch.instead:
        return _dry(words, launch, _reachable(words))
    return _run(words, launch, _reachable(words), read.read(list(words)))


def _reachable(words: tuple[str, ...]) -> Stop | None:
    """The launcher among the words that drops variables, where they can be given as words. Raises
    `click.UsageError` where a trainer behind it could not be reached."""
    from bashread import Argument
    from batchbridge.reading.launchers import programs

    stops = [program.stop for program in programs([Argument(word, 1) for word in words]) if program.stop is not None]
    for stop in stops:
        if stop.place is None:
            where = f"`batchbridge run` in front of {stop.launcher} does not reach the training"
            raise click.UsageError(f"{stop.reason}: {where}; write: {stop.instead}")
    return stops[0] if stops else None


def _in_script(words: tuple[str, ...]) -> None:
    """Says where `run` must stand in a script whose training starts behind a launcher that drops variables. It is not a
    refusal: a script may have other ways."""
    from batchbridge.reading import read
    from batchbridge.running.telling import tell

    if len(words) > 1 and words[0].rpartition("/")[2] in ("bash", "sh") and Path(words[1]).is_file():
        lost = read.read(words[1]).unreached
        if lost is not None:
            where = f"`batchbridge run` in front of {words[1]} does not reach what {lost.launcher} starts in it"
            tell(f"{lost.reason}: {where}; write there: {lost.instead}")


def _known(allow: Collection[str], asked: Collection[Adapter]) -> None:
    """The check that some adapter that may be asked knows each name that is allowed. Raises `click.UsageError`."""
    if not allow:
        return
    from batchbridge.kit.near_names import near_names

    known = sorted({name for adapter in asked for name in adapter.allowable()})
    for name in allow:
        if name not in known:
            near = near_names([name], known, 0.6).get(name, [])
            meant = f"; did you mean {' or '.join(near)}?" if near else "."
            said = f"no refusal that can be allowed{meant} Those that can: {', '.join(known)}"
            raise click.UsageError(f"--allow {name}: {said}")


def _spec(file: Path) -> Mapping[str, Any]:
    """The specification of a file. Raises `click.UsageError`."""
    from batchbridge.meaning.spec import Spec

    try:
        spec: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        Spec.from_dict(spec)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        way = '`batchbridge explain --json` has one under "spec"'
        raise click.UsageError(f"--spec {file} is not a specification: {error}; {way}") from None
    return spec


def _run(words: tuple[str, ...], launch: Launch, stop: Stop | None, own: Reading | None = None) -> int:
    """The command's exit code. own: what its words say, for the lines before it.

    Raises `click.UsageError` where nothing is started."""
    from batchbridge.contract import plugins
    from batchbridge.contract.enforcement import enforcement_of
    from batchbridge.ledger.records import try_to_write
    from batchbridge.running import command, spoken
    from batchbridge.running.telling import tell

    there = words[:3] == ("ray", "job", "submit")  # the job writes it, on a machine of the cluster
    try:
        if launch.ledger is not None and not there:
            try_to_write(launch.ledger)
        if own is not None:
            told = enforcement_of(plugins.adapters().get(own.framework), own)
            for line in spoken.before(own, told, launch):
                tell(line, launch.ledger)
        return command.run(words, launch, stop=stop, explained=partial(diagnosed, own=own), unreached=UNDECIDED)
    except BatchBridgeError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        way = "; give the command that starts the training, such as: bash run.sh" if Path(words[0]).exists() else ""
        raise click.UsageError(f"{words[0]} cannot be started: {error.strerror}{way}") from None


def diagnosed(died: str, own: Reading | None) -> Iterator[str]:
    """The lines about a text that processes died of: what `batchbridge doctor` says of it, with the command's own
    configuration; none where it is not known."""
    from batchbridge.diagnosis import Diagnosis, doctor
    from batchbridge.render import between

    found: Sequence[Diagnosis] = doctor(died, readings=[own] if own is not None and own.native else [])
    if own is not None:  # another framework's rule may quote the same text
        found = tuple(one for one in found if one.text.framework == own.framework) or found
    if found:
        yield "the command died of a text that is known; `batchbridge doctor` says of it:"
        yield from between.diagnoses(found, "the command").splitlines()
