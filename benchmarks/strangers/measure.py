"""What `batchbridge check` says of strangers' launches, held against labels that people made by reading them.

    python benchmarks/strangers/measure.py FOLDER [--truth truth.yaml] [--only WORDS] [--answers FILE] [--write PLACE]

FOLDER has a checkout of each repository that the labels name, as FOLDER/OWNER+NAME, at the commit named there. A file
is checked from the root of its repository, in a process of its own, as a user would, by the BatchBridge that this
Python imports. Where a file leaves something open that its user knows (devices), it is checked again with that answer.
Nothing of the repositories runs, and nothing of this runs in CI. --answers keeps what was said, --again judges what was
kept. --write puts the table at one of the places in docs/evidence.md, at the place "followed" the one of what `run` and
`wrap` would follow. The exit code is 1 if the bar is not met.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import resource
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import batchbridge
from batchbridge_on_cpu.figures import commit_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "evidence.md"
FOLLOWED = "followed"
"""The place of the table of what `run` and `wrap` would follow."""
SHARE_READ = 0.85
"""Of the reinforcement-learning trainers, at least."""
SECONDS = 10.0
"""Of the processor, for all labelled files of one repository, at most."""
HEADLINE = re.compile(r"([\d,]+) prompts? x ([\d,]+) = ([\d,]+) completions? per rollout(?:; (.*))?")
STEPS = re.compile(r"optimizer steps? of ([\d,]+) completions?")
MARKED = re.compile(
    r"\bwould\b|\bif it builds\b|, and right if\b|counts? otherwise|\bon [\d,]+ devices?:|differs? here|not decided"
)
"""Words that say that a line's numbers hold under a condition."""
FEW = 2
"""Trainers; an obstacle of no more is left out of the table."""
OPEN_CODES = ("BB010", "BB011", "BB012", "BB013", "BB014", "BB015")
"""Of findings that say what reading could not decide."""
RELATIVES = {"open_r1": {"open_r1", "trl"}, "trl": {"trl", "open_r1"}, "ms_swift": {"ms_swift", "trl"}}
"""Adapters whose answer about a framework is right, where it is not that framework's alone."""


class Said(NamedTuple):
    """What `check` answered about one file."""

    text: str
    result: dict[str, Any]
    exit_code: int
    cpu_seconds: float

    @property
    def verdict(self) -> str:
        return str(self.result.get("verdict", "none"))

    @property
    def framework(self) -> str:
        return str(self.result.get("framework", "unknown"))

    @property
    def devices(self) -> int | None:
        topology = (self.result.get("spec") or {}).get("topology") or self.result.get("sizes_beside_open") or {}
        found = topology.get("world_size")
        return int(found) if found else None

    def errors(self) -> list[dict[str, Any]]:
        """Findings that call something wrong, not those that say what is open."""
        return [
            one
            for one in self.result.get("findings", [])
            if one["severity"] == "error" and not one.get("undecided") and one["code"] not in OPEN_CODES
        ]


class Numbers(NamedTuple):
    """The headline of an answer."""

    prompts: int
    per_prompt: int
    completions: int
    step: int | None
    marked: bool
    """They are said under a condition, or as an example."""


class Judged(NamedTuple):
    """An answer held against its label."""

    repository: str
    path: str
    trains: str
    framework: str
    state: str
    """read, undecided, unread; of what is no trainer: told, claimed."""
    false: tuple[str, ...]
    missed: tuple[str, ...]
    headline: str
    """Empty, or what is wrong with it."""
    missing: str
    cpu_seconds: float


def files_of(truth: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every labelled file, with its repository."""
    for name, repository in truth["repositories"].items():
        for file in repository["files"]:
            yield name, file


def folder_of(checkouts: Path, repository: str) -> Path:
    return checkouts / repository.replace("/", "+", 1)


def asked(folder: Path, words: list[str]) -> Said:
    """What `check` says in a repository's root: JSON for the numbers, text for what a person reads first."""
    command = [sys.executable, "-m", "batchbridge", "check"]  # options first: words may stand behind --
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run(
        [*command, "--json", *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    ).stdout
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    try:
        results = json.loads(answer.stdout)["results"]
    except (ValueError, KeyError):
        results = [{"verdict": "crash", "findings": [], "error": answer.stderr[-400:]}]
    return Said(text, results[0] if results else {}, answer.returncode, seconds)


def answers(checkouts: Path, truth: dict[str, Any], only: str) -> dict[str, list[Said]]:
    """Of each file what is said of it, and what is said once the user has answered what it leaves open."""
    found: dict[str, list[Said]] = {}
    for name, file in files_of(truth):
        if only and only not in f"{name}/{file['path']}":
            continue
        folder = folder_of(checkouts, name)
        if not (folder / file["path"]).is_file():
            continue
        words = [[file["path"]]]
        if "ask" in file:
            words.append([file["path"], *shlex.split(file["ask"])])
        found[f"{name}/{file['path']}"] = [asked(folder, one) for one in words]
    return found


def numbers(said: Said) -> Numbers | None:
    """The line that says what a rollout and an optimizer step have."""
    lines = said.text.splitlines()
    for place, line in enumerate(lines):
        found = HEADLINE.search(line)
        if found is None:
            continue
        around = " ".join(lines[max(place - 1, 0) : place + 2])
        step = STEPS.search(found[4] or "")
        prompts, per_prompt, completions = (int(found[n].replace(",", "")) for n in (1, 2, 3))
        size = int(step[1].replace(",", "")) if step else None
        return Numbers(prompts, per_prompt, completions, size, bool(MARKED.search(around)))
    return None


def allowed(label: object, devices: int | None) -> set[int]:
    """The numbers that a label lets stand: 32, 16D (times the devices), or a list of such."""
    found = set()
    for one in label if isinstance(label, list) else [label]:
        text = str(one)
        if not text.endswith("D"):
            found.add(int(text))
        elif devices is not None:
            found.add(int(text[:-1] or 1) * devices)
    return found


def wrong(file: dict[str, Any], said: Said, found: Numbers) -> str:
    """What a headline says that the file does not decide, or decides otherwise."""
    devices = file.get("devices") or said.devices
    stated = {"per_prompt": found.per_prompt, "completions": found.completions, "step": found.step}
    if file.get("devices") and said.devices and file["devices"] != said.devices:
        return f"{said.devices} devices, not {file['devices']}"
    for name, value in stated.items():
        if value is None:
            continue
        if name not in file:
            return f"{name} {value:,}, which the file does not decide"
        right = allowed(file[name], devices)
        if value not in right and not (name == "step" and value > found.completions in right):
            return f"{name} {value:,}, not {' or '.join(f'{one:,}' for one in sorted(right)) or 'decided'}"
    return ""


def judged(name: str, file: dict[str, Any], said: list[Said]) -> Judged:
    """One file's answers held against its label."""
    first, framework = said[0], file.get("framework", "none")
    real = [str(key) for key in file.get("errors", [])]
    claims = [f"{one['code']} {one['message'][:90]}" for one in first.errors() if not names(one, real)]
    claims += [f"crash: {first.result['error']}"] if first.verdict == "crash" else []
    false = tuple(claims) if first.verdict in ("invalid", "crash") and (claims or not real) else ()
    spoken = [one for one in first.result.get("findings", []) if names(one, real)]
    missed = tuple(real) if real and not spoken and first.verdict == "valid" else ()
    heads = [(one, numbers(one)) for one in said]
    claimed = ((one, found) for one, found in heads if found and not found.marked)  # a marked one is no claim
    headline = next((bad for one, found in claimed if (bad := wrong(file, one, found))), "")
    if file["trains"] != "rl":
        state = "claimed" if first.verdict in ("valid", "invalid") or heads[0][1] else "told"
        return Judged(name, file["path"], file["trains"], framework, state, false, missed, headline, "", seconds(said))
    known = any(one.framework in RELATIVES.get(framework, {framework}) for one in said)
    shown = any(found and not wrong(file, one, found) for one, found in heads)
    refused = bool(real) and bool(spoken)
    state = "read" if known and (shown or refused) and not headline else "undecided" if known else "unread"
    gaps = "; ".join(one["message"][:110] for one in said[-1].result.get("findings", []) if one.get("undecided"))
    missing = "" if state == "read" else gaps or "; ".join(false) or f"{said[-1].verdict}, no numbers"
    return Judged(name, file["path"], "rl", framework, state, false, missed, headline, missing, seconds(said))


def seconds(said: list[Said]) -> float:
    return said[0].cpu_seconds


def names(finding: dict[str, Any], keys: Iterable[str]) -> bool:
    """Whether a finding is about one of these settings."""
    about = " ".join([finding["message"], *(str(place.get("key")) for place in finding["where"])])
    return any(re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", about) for key in keys)


def table(rows: list[Judged]) -> list[str]:
    """The counts by framework, as lines of a page."""
    names_of_columns = (
        "framework, files, trainers, read, undecided, unread, false errors, missed errors, wrong headlines"
    )
    lines = [f"| {names_of_columns.replace(', ', ' | ')} | slowest repository |", "|---" * 10 + "|"]
    for group in [*sorted({row.framework for row in rows} - {"none"}), ""]:
        some = [row for row in rows if group in ("", row.framework)]
        states = Counter(row.state for row in some if row.trains == "rl")
        false, findings = sum(bool(row.false) for row in some), sum(len(row.false) for row in some)
        cells = (
            group or f"all, {len(per_repository(rows))} repositories",
            len(some),
            sum(states.values()),
            *(states[state] for state in ("read", "undecided", "unread")),
            f"{false} ({findings})" if findings else "0",
            sum(bool(row.missed) for row in some),
            sum(bool(row.headline) for row in some),
            f"{max(per_repository(some).values(), default=0):.1f} s",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def followed(said: dict[str, list[Said]], truth: dict[str, Any]) -> list[str]:
    """What `check` says that `run` and `wrap` would do with each trainer, and the obstacles, most frequent first."""
    counted: dict[str, Counter[str]] = {}
    obstacles: dict[str, Counter[str]] = {}
    certain: Counter[str] = Counter()
    for name, file in files_of(truth):
        answers_here = said.get(f"{name}/{file['path']}")
        if not answers_here or file["trains"] != "rl":
            continue
        # The answer that has what the user knows; of an obstacle that stands there twice, one.
        found = answers_here[-1].result.get("enforcement") or {"verdict": "unknown", "obstacles": []}
        framework = file["framework"]
        counted.setdefault(framework, Counter())[found["verdict"]] += 1
        named = {one["name"]: one["certain"] for one in found["obstacles"]}
        for obstacle, sure in named.items():
            obstacles.setdefault(obstacle, Counter())[framework] += 1
            certain[obstacle] += sure
    verdicts = ("enforced", "with_allow", "unknown", "refused")
    heads = "framework | trainers | enforced | with `allow` | the trainer decides | refused"
    lines = [f"| {heads} |", "|---" * 6 + "|"]
    rows = [(group, counted[group]) for group in sorted(counted)]
    for group, states in [*rows, ("all", sum((states for _, states in rows), Counter()))]:
        cells = (group, states.total(), *(states[state] for state in verdicts))
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += ["", "| obstacle | trainers | of them certain | frameworks |", "|---" * 4 + "|"]
    for obstacle, where in sorted(obstacles.items(), key=lambda one: (-one[1].total(), one[0])):
        if where.total() > FEW:
            frameworks = ", ".join(f"{framework} {number}" for framework, number in sorted(where.items()))
            lines.append(f"| `{obstacle}` | {where.total()} | {certain[obstacle]} | {frameworks} |")
    return lines


def per_repository(rows: list[Judged]) -> dict[str, float]:
    """Processor seconds that the files of each repository take."""
    taken: dict[str, float] = {}
    for row in rows:
        taken[row.repository] = taken.get(row.repository, 0.0) + row.cpu_seconds
    return taken


def met(rows: list[Judged]) -> list[str]:
    """What of the bar is not met."""
    trainers = [row for row in rows if row.trains == "rl"]
    read = sum(row.state == "read" for row in trainers)
    found = [
        (any(row.false for row in rows), "false errors"),
        (any(row.headline for row in rows), "wrong headlines"),
        (bool(trainers) and read < SHARE_READ * len(trainers), f"{read} of {len(trainers)} trainers are read"),
        (any(row.state != "read" and not row.missing for row in trainers), "an unread trainer without a reason"),
        (any(row.state == "claimed" for row in rows), "something else taken for a trainer"),
        (max(per_repository(rows).values(), default=0) > SECONDS, "a repository takes too long"),
    ]
    return [text for bad, text in found if bad]


def details(rows: list[Judged]) -> list[str]:
    """Whatever a person has to look at, a line each."""
    lines = []
    for row in rows:
        where = f"{row.repository}/{row.path}"
        lines += [f"false     {where}  {text}" for text in row.false[:3]]
        lines += [f"          and {len(row.false) - 3} more"] * (len(row.false) > 3)
        lines += [f"missed    {where}  {', '.join(row.missed)}"] * bool(row.missed)
        lines += [f"headline  {where}  {row.headline}"] * bool(row.headline)
        lines += [f"claimed   {where}"] * (row.state == "claimed")
        lines += [f"{row.state:9} {where}  {row.missing[:200]}"] * (row.state in ("undecided", "unread"))
    return lines


def stated(place: str, commit: str, day: str, lines: list[str]) -> None:
    """The table between the marks of a place in docs/evidence.md."""
    mark = f"<!-- written by benchmarks/strangers/measure.py --write {place} -->"
    block = "\n".join([mark, f"On {commit}, {day}:", "", *lines, "<!-- end -->"])
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(mark) + r".*?<!-- end -->", re.S)
    if not pattern.search(text):
        raise SystemExit(f"{PAGE.name} has no place {place}: {mark} ... <!-- end -->")
    PAGE.write_text(pattern.sub(lambda _: block, text), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--truth", type=Path, default=HERE / "truth.yaml")
    parser.add_argument("--only", default="", help="files whose repository and path have these words")
    parser.add_argument("--answers", type=Path, help="a JSON file that keeps what was said")
    parser.add_argument("--again", action="store_true", help="judge the answers that were kept")
    parser.add_argument("--write", metavar="PLACE", help="the table, at this place of docs/evidence.md")
    options = parser.parse_args()
    truth = yaml.safe_load(options.truth.read_text(encoding="utf-8"))
    if options.again:
        kept = json.loads(options.answers.read_text(encoding="utf-8"))
    else:
        commit, day = (
            commit_of(Path(batchbridge.__file__).parent, 8),
            datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
        kept = {"commit": commit, "day": day, "said": answers(options.checkouts, truth, options.only)}
    if options.answers and not options.again:
        options.answers.write_text(json.dumps(kept), encoding="utf-8")
    said = {key: [Said(*one) for one in some] for key, some in kept["said"].items()}
    rows = [
        judged(name, file, said[key]) for name, file in files_of(truth) if (key := f"{name}/{file['path']}") in said
    ]
    lines = table(rows)
    unmet = met(rows)
    print(*details(rows), "", f"{kept['commit']}, {kept['day']}", *lines, "", sep="\n")
    absent = sum(1 for _ in files_of(truth)) - len(rows)
    print(f"{absent} labelled files were not asked about" if absent else "every labelled file was asked about")
    print(f"not met: {', '.join(unmet)}" if unmet else "the bar is met")
    if options.write:
        written = followed(said, truth) if options.write == FOLLOWED else lines
        stated(options.write, kept["commit"], kept["day"], written)
    return 1 if unmet else 0


if __name__ == "__main__":
    raise SystemExit(main())
