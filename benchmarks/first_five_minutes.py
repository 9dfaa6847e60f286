"""The counts of a review by five kinds of new users, measured again on checkouts of the frameworks.

    python benchmarks/first_five_minutes.py open-r1=FOLDER[@COMMIT] verl=FOLDER[@COMMIT] ... [--write]

The review tried BatchBridge at 1e55ad4 on real files of Open-R1, verl, OpenRLHF, EasyR1 and Open-Instruct. FOLDER is a
checkout; COMMIT is said where the folder has no .git. Each file is asked as the command line asks. Nothing of a file
runs, and no network is used. --write puts the table into docs/first_five_minutes.md, between the markers. It takes two
minutes of CPU. A report and no gate: tests/cli/test_review.py holds single answers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import batchbridge
from batchbridge.cli import _folder
from batchbridge.cli.main import main as command_line
from batchbridge.contract import plugins
from batchbridge.diagnosis import doctor
from batchbridge.kit.error_texts import quotations
from batchbridge.reports import Check
from batchbridge_on_cpu.figures import commit_of

PAGE = Path(__file__).parents[1] / "docs" / "first_five_minutes.md"
BEGIN, END = "<!-- written by benchmarks/first_five_minutes.py -->\n", "<!-- end -->\n"
SWEPT = "0.7.1"
"""The version of verl that the review swept its examples under."""
COMMITS = {
    "open-r1": "1416fa0",
    "verl": "b178a3c",
    "OpenRLHF": "3c3be62",
    "EasyR1": "b44b311",
    "open-instruct": "e6c3044",
}
"""The review's."""

NO_RUNS = (
    *(f"recipes/OlympicCoder-{size}/sft/config_v00.00.yaml" for size in ("7B", "32B")),
    "recipes/OpenR1-Distill-7B/sft/config_distill.yaml",
    *(f"recipes/dataset_filtering/{name}.yaml" for name in ("config_demo", "filter_dapo", "filter_python")),
)
"""Of Open-R1: fine-tuning and filters, which were judged as broken GRPO recipes."""
NOT_INVALID = (
    "examples/sglang_multiturn/geo3k/run_qwen2.5-3b_megatron_geo3k_multiturn.sh",
    "examples/sglang_multiturn/run_qwen2.5-3b_megatron_gsm8k_multiturn.sh",
)
"""Of verl: nine errors each, none of them true, as the configuration that they name was not found."""
DATED = tuple(
    f"examples/tuning/{size}/qwen2-{told}_grpo-lora_{gpus}_h100_fsdp_vllm.sh"
    for size, told, gpus in (
        *(("0.5b", "0.5b", 1), ("1.5b", "1.5b", 1), ("3b", "3b", 1), ("7b", "7b", 1)),
        *(("14b", "14b", 2), ("32b", "32b", 4), ("70b", "72b", 8)),
    )
)
"""Of verl: undecided because of `$(date ...)` in a run's name."""

PASTED = (
    "ValueError: Unknown arguments from config file: ['vllm_device']",
    "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length'",
    "Could not override 'actor_rollout_ref.actor.ppo_micro_batchsize_per_gpu'.\nTo append to your config use "
    "+actor_rollout_ref.actor.ppo_micro_batchsize_per_gpu=8\nKey 'ppo_micro_batchsize_per_gpu' is not in struct",
    "AssertionError: real_train_batch_size (60) must be divisible by total n_gpus (16).",
    "AssertionError: max_token_len must be greater than the sequence length. Got max_token_len=512 and "
    "max_seq_len=tensor(1536)",
    "AssertionError: key task_suite_name length 10 is not equal to batch size 11",
)
"""The six texts of the review's number 12 that doctor did not know."""


class Checkout(NamedTuple):
    """A framework's checkout."""

    name: str
    folder: Path
    commit: str

    def files(self) -> list[Path]:
        """Files that may be runs, sorted."""
        return [Path(name) for name in _folder.files_of(str(self.folder))]


def said_by(*words: str) -> str:
    """What the command line prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        command_line(words)
    return out.getvalue()


class Count(NamedTuple):
    """A row of the table: a thing counted, the review's number, today's, and a remark."""

    what: str
    then: str
    now: str
    remark: str = ""


def runs_of(checkout: Checkout) -> Iterator[tuple[Path, Check]]:
    """Every file of a checkout that is a run, checked without a version."""
    for file in checkout.files():
        found = batchbridge.check(file)
        if _folder.no_run(found.reading) is None:
            yield file, found


def without_version(checkouts: Mapping[str, Checkout]) -> Iterator[Count]:
    """What files say where nobody names a version."""
    tried, explained, open_, verdicts, unsure = 0, 0, [], Counter[str](), 0
    for checkout in checkouts.values():
        tried += len(checkout.files())
        for file, found in runs_of(checkout):
            if found.reading.framework == "unknown":
                unsure += 1
                continue
            verdicts[found.verdict] += 1
            if found.reading.framework_version is None and found.judged is None:
                open_.append(f"{checkout.name}/{file.relative_to(checkout.folder)}")
            else:
                explained += 1
    runs = sum(verdicts.values())
    yield Count(
        "files tried with no version named", "52", f"{tried}", "every YAML file and shell script of the checkouts"
    )
    yield Count(
        "explained or judged with no version named, of those recognised",
        "0 of 38",
        f"{explained} of {runs}",
        f"{verdicts['valid']} valid, {verdicts['invalid']} invalid, {verdicts['undecided']} undecided; "
        f"{unsure} more could be of two frameworks, and ask for one",
    )
    yield Count("unhelpful for want of a version", "38", f"{len(open_)}", "; ".join(open_))


def sweep(verl: Checkout) -> Iterator[Count]:
    """verl's examples that start main_ppo, under `SWEPT`."""
    scripts = [file for file in verl.files() if file.suffix == ".sh" and "examples" in file.parts]
    scripts = [file for file in scripts if "main_ppo" in file.read_text(encoding="utf-8", errors="replace")]
    found = {file: batchbridge.check(file, version=SWEPT) for file in scripts}
    verdicts = Counter(one.verdict for one in found.values())
    names = [str(file.relative_to(verl.folder)) for file, one in found.items() if one.verdict == "undecided"]
    yield Count(
        f"verl's examples under {SWEPT}",
        "76 valid, 18 invalid, 33 undecided",
        f"{verdicts['valid']} valid, {verdicts['invalid']} invalid, {verdicts['undecided']} undecided",
        f"{len(scripts)} scripts; undecided: {', '.join(Path(name).name for name in names)}",
    )
    messages = [finding.message for one in found.values() for finding in one.findings]
    wrong = [message for message in messages if "is not expected at column" in message and "$(" in message]
    yield Count("wrong message about `$( )`", "17", f"{len(wrong)}")
    there = [
        named[1]
        for one in found.values()
        for finding in one.findings
        if (named := re.match(r"the configuration (\S+) .* is not found", finding.message)) and one.verdict != "valid"
        if list(verl.folder.rglob(f"{named[1]}.yaml"))
    ]
    yield Count("configuration of the same repository not found", "13", f"{len(there)}")
    yield Count("undecided for a placeholder", "2", f"{_placeholders(found)}", "of verl's; a note says the line")
    misleading, told = 0, 0
    for file, one in found.items():
        behaviour = one.reading.behaviour
        if one.reading.spec is None or behaviour is None or behaviour.denominator_scope == "optimizer_step":
            continue
        told += 1
        text = said_by("explain", str(file), "--framework-version", SWEPT)
        meaning = text.partition("\nMeaning")[2] or text
        own, wrapped = (meaning.find(f"per {scope}") for scope in (_scope(behaviour), "optimizer step (under"))
        wrapped = meaning.find("counted per optimizer step") if wrapped < 0 else wrapped
        misleading += own < 0 or 0 <= wrapped < own
    yield Count(
        "headlines of `explain` that state the wrapped run as the native one",
        "96",
        f"{misleading}",
        f"of {told} whose native denominator is not the optimizer step's",
    )
    lengths, lines = [], []
    for file, one in found.items():
        if one.verdict == "valid":
            said = said_by("check", str(file), "--framework-version", SWEPT).rstrip("\n").split("\n")
            lengths.append(len(said))
            lines += said
    long = sum(len(line) > 160 for line in lines) / max(len(lines), 1)
    yield Count("lines of `check` for a valid verl script, median", "27", f"{statistics.median(lengths):g}")
    yield Count("longest line", "4,863", f"{max(map(len, lines)):,}", f"{100 * long:.0f} % are longer than 160")


def _scope(behaviour: batchbridge.Behaviour) -> str:
    return behaviour.denominator_scope.replace("_", "-")


def _placeholders(found: Mapping[Path, Check]) -> int:
    told = [one for one in found.values() if one.verdict == "undecided"]
    return sum(any(finding.undecided and "placeholder" in finding.message for finding in one.findings) for one in told)


def wrong_verdicts(checkouts: Mapping[str, Checkout]) -> Iterator[tuple[str, str, bool]]:
    """(file, what is asserted of it, whether it holds) of the review's fifteen, where their checkouts are given."""
    if "open-r1" in checkouts:
        for name in NO_RUNS:
            found = batchbridge.check(checkouts["open-r1"].folder / name, version="0.18.0")
            errors = [one for one in found.findings if one.severity == "error" and not one.undecided]
            yield name, "no GRPO recipe: not judged, no error", not errors and _folder.no_run(found.reading) is not None
    if "verl" in checkouts:
        for name in (*NOT_INVALID, *DATED):
            found = batchbridge.check(checkouts["verl"].folder / name, version=SWEPT)
            yield name, "valid", found.verdict == "valid"


def launchers(checkouts: Mapping[str, Checkout]) -> Iterator[tuple[str, bool]]:
    """(a launch script, whether its training command is recognised) of the three that were not."""
    if "open-r1" in checkouts:
        script = checkouts["open-r1"].folder / "slurm" / "train.slurm"
        words = ("--model", "Qwen2.5-1.5B-Instruct", "--task", "grpo", "--config", "demo", "--accelerator", "zero2")
        env = {str(place): word for place, word in enumerate((*words, "--dp", "8", "--tp", "1"), 1)}
        yield (
            "Open-R1's slurm/train.slurm with its arguments",
            batchbridge.check(script, env=env).reading.spec is not None,
        )
    if "OpenRLHF" in checkouts:
        script = checkouts["OpenRLHF"].folder / "examples" / "scripts" / "train_ppo_ray_slurm.sh"
        framework = batchbridge.check(script).reading.framework
        yield "OpenRLHF's train_ppo_ray_slurm.sh", framework == "openrlhf"
    words = ("accelerate", "launch", "--num_processes", "8", "my_train.py", "--config")
    if "open-r1" in checkouts:
        recipe = checkouts["open-r1"].folder / "recipes" / "Qwen2.5-1.5B-Instruct" / "grpo" / "config_demo.yaml"
        found = batchbridge.check([*words, str(recipe)], version="0.18.0")
        yield "a trainer script of one's own, with --config", found.reading.spec is not None


def garbled(checkouts: Mapping[str, Checkout]) -> tuple[int, int]:
    """(outputs in which an escape code is printed as text, outputs): `explain` and `scale` on terminals of 80 and 120
    columns."""
    import pty

    recipe = checkouts["open-r1"].folder / "recipes" / "Qwen2.5-1.5B-Instruct" / "grpo" / "config_demo.yaml"
    asked = [
        (command, columns)
        for command in (["explain", str(recipe)], ["scale", str(recipe), "--from", "8", "--world-size", "4"])
        for columns in ("80", "120")
    ]
    wrong = 0
    for words, columns in asked:
        end, terminal = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": columns}
        options = ["--framework-version", "0.18.0", *(["--gpus", "8"] if words[0] == "explain" else [])]
        with subprocess.Popen(
            [sys.executable, "-m", "batchbridge", *words, *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
        ):
            os.close(terminal)
            said = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while chunk := os.read(end, 65536):
                    said += chunk
        os.close(end)
        wrong += b"\\x1b" in said or not said
    return wrong, len(asked)


def texts() -> Iterator[Count]:
    """What doctor knows."""
    rows = [row for adapter in plugins.adapters().values() for row in plugins.rows(adapter)]
    natives = {(row.code, row.native) for row in rows if isinstance(row.native, str) and any(quotations(row.native))}
    known = sum(any(code in one.codes for one in doctor(f"[rank0]: {native}\n")) for code, native in natives)
    yield Count("native messages that rules quote, known to `doctor`", "-", f"{known} of {len(natives)}")
    six = sum(bool(doctor(text)) for text in PASTED)
    yield Count("the six error texts of number 12, known to `doctor`", "0 of 6", f"{six} of {len(PASTED)}")


def counts(checkouts: Mapping[str, Checkout]) -> list[Count]:
    """The whole table."""
    found = [*without_version(checkouts)]
    if "verl" in checkouts:
        found += sweep(checkouts["verl"])
    verdicts = list(wrong_verdicts(checkouts))
    wrong = [name for name, _, holds in verdicts if not holds]
    found.append(Count("wrong verdicts of the fifteen known ones", "15", f"{len(wrong)}", ", ".join(wrong)))
    started = list(launchers(checkouts))
    missed = [name for name, holds in started if not holds]
    found.append(
        Count("launch scripts whose training command is not recognised", "3", f"{len(missed)}", ", ".join(missed))
    )
    if "open-r1" in checkouts:
        bad, of = garbled(checkouts)
        found.append(Count("garbled on a terminal", "3", f"{bad}", f"of {of} outputs of `explain` and `scale`"))
    return [*found, *texts()]


def table(checkouts: Mapping[str, Checkout], found: list[Count]) -> str:
    """The part of the page between the markers."""
    named = ", ".join(f"{one.name} {one.commit}" for one in checkouts.values())
    lines = [
        f"Written by `python benchmarks/first_five_minutes.py {' '.join(f'{name}=...' for name in checkouts)} --write`",
        f"on {named}. The review's numbers are those of 1e55ad4.",
        "",
        "| what | the review | now | |",
        "|---|---|---|---|",
        *(f"| {one.what} | {one.then} | {one.now} | {one.remark} |" for one in found),
        "",
        "| wrong verdict in the review | what is asserted | holds |",
        "|---|---|---|",
        *(f"| `{name}` | {what} | {'yes' if holds else 'no'} |" for name, what, holds in wrong_verdicts(checkouts)),
    ]
    return "\n".join([*lines, ""])


def checkout_of(text: str) -> Checkout:
    """`NAME=FOLDER[@COMMIT]`."""
    name, _, rest = text.partition("=")
    folder, _, commit = rest.partition("@")
    if name not in COMMITS or not Path(folder).is_dir():
        raise SystemExit(f"{text}: expected NAME=FOLDER[@COMMIT], with NAME one of {', '.join(COMMITS)}")
    if not commit:
        try:
            commit = commit_of(Path(folder), 7)
        except subprocess.CalledProcessError:
            commit = "unknown"
    return Checkout(name, Path(folder), commit)


def main() -> None:
    """Counts, prints and perhaps writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER[@COMMIT]")
    parser.add_argument("--write", action="store_true")
    told = parser.parse_args()
    checkouts = {one.name: one for one in map(checkout_of, told.checkouts)}
    text = table(checkouts, counts(checkouts))
    print(text)
    if told.write:
        page = PAGE.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(head + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
