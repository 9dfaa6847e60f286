"""Every reader, what it is fed, and what counts as an answer."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import ledgers
import mutation
import pages
import seeds

import batchbridge
from batchbridge import diagnosis
from batchbridge.cli.main import main
from batchbridge.comparing import edit_yaml
from batchbridge.comparing.fix_file import fix_file, safe_fixes
from batchbridge.kit.config_texts import as_groups
from batchbridge.meaning.findings import Finding, Phase, Severity
from batchbridge.meaning.spec import Spec
from batchbridge.reading import arguments
from batchbridge.reading.yaml_json import parse_yaml
from batchbridge.render import between as render_between
from batchbridge.render import json as render_json
from batchbridge.render import text as render_text
from batchbridge.rules import core_rules
from batchbridge_trl.settings import GONE

CODE = re.compile(r"BB(-[A-Z0-9]+)?-?\d{3}")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys; whatever is printed has none of them."""
FAILED = re.compile(r"BB023|BB03\d")
"""Findings that say that an adapter or plugin of ours raised."""
SEVERITIES, PHASES = get_args(Severity), get_args(Phase)


class Wrong(AssertionError):
    """An answer that is none."""


@dataclass(frozen=True)
class Reader:
    """A reader: its share of all inputs, how an input is made (deterministic), laid down (files), and read.

    make: from a random generator to the input. lay: writes what must lie on disk, and gives what `act` takes. act:
    reads and judges; raises only where the reader or its answer is wrong.
    """

    name: str
    share: float
    make: Callable[[random.Random], Any]
    act: Callable[[Any], object]
    lay: Callable[[Path, Any], Any] = lambda folder, made: made


# ---- judging


def judge(reading: batchbridge.Reading, shown: bool = True) -> bool:
    """A reading is an answer: well-formed findings; where it is shown too, JSON, printable, and nothing of the
    environment in it. Gives whether there is a spec: an input that none ever comes of tests little."""
    for finding in reading.findings:
        well_formed(finding)
    if reading.verdict not in ("valid", "invalid", "undecided"):
        raise Wrong(f"verdict {reading.verdict!r}")
    if reading.spec is None and reading.verdict == "valid" and not reading.findings:
        raise Wrong("no spec, and nothing said about why")
    if not shown:
        return reading.spec is not None
    as_json = render_json.dumps(reading.to_dict())
    printed = render_text.check("input", reading)
    if reading.spec is not None:
        printed += render_text.explain("input", reading)
    for text in (as_json, printed):
        if mutation.CANARY in text:
            raise Wrong("the value of an environment variable stands in the answer")
    if found := CONTROL.search(printed):
        raise Wrong(f"control character {found.group()!r} is printed")
    return reading.spec is not None


def well_formed(finding: Finding) -> None:
    """Code, severity, phase, words; not a failure of ours."""
    if FAILED.fullmatch(finding.code):
        raise Wrong(f"an adapter failed: {finding.message}")
    fine = CODE.fullmatch(finding.code) and finding.severity in SEVERITIES and finding.phase in PHASES
    if not fine or not finding.message.strip() or any(not fix.text.strip() for fix in finding.fixes):
        raise Wrong(f"ill-formed finding: {finding!r:.300}")


def read_and_judge(source: Any, options: Mapping[str, Any]) -> bool:
    """Every reading is judged, and one in four is shown, which takes longer than to read it."""
    settings = dict(options)
    shown = settings.pop("shown", True)
    return judge(batchbridge.read(source, **settings), shown)


# ---- making


def _options(rng: random.Random, framework: str | None) -> dict[str, Any]:
    """What is said beside the configuration; mostly what makes it readable."""
    options: dict[str, Any] = {"shown": rng.random() < 0.25}
    if framework is not None:
        options["version"] = rng.choice(seeds.VERSIONS[framework])
        if rng.random() < 0.7:
            options["framework"] = seeds.FRAMEWORK[framework]
    if rng.random() < 0.02:
        options["version"] = mutation.piece(rng)
    if rng.random() < 0.7:
        options["world_size"] = rng.choice((1, 2, 7, 8, 8, 8, 64, 4096, 10**12))
    if rng.random() < 0.3:
        options["dataset_size"] = rng.choice((1, 7, 8000, 10**6, 10**18))
    return options


def _yaml(framework: str) -> Callable[[random.Random], tuple[bytes, dict[str, Any]]]:
    def make(rng: random.Random) -> tuple[bytes, dict[str, Any]]:
        return mutation.data(rng, mutation.text(rng, seeds.yaml_texts(framework))), _options(rng, framework)

    return make


def _mapping(framework: str) -> Callable[[random.Random], tuple[Any, dict[str, Any]]]:
    def make(rng: random.Random) -> tuple[Any, dict[str, Any]]:
        seed = seeds.SETTINGS[framework]
        made = mutation.tree(rng, dict(seed) if rng.random() < 0.5 else as_groups(seed))
        return (made if isinstance(made, dict) else {"value": made}), _options(rng, framework)

    return make


def _argv(framework: str) -> Callable[[random.Random], tuple[list[str], dict[str, Any]]]:
    def make(rng: random.Random) -> tuple[list[str], dict[str, Any]]:
        return mutation.words(rng, seeds.commands(framework)), _options(rng, framework)

    return make


def _script(rng: random.Random) -> tuple[bytes, dict[str, Any]]:
    dialect = rng.choice(list(seeds.SETTINGS))
    options = _options(rng, dialect)
    if rng.random() < 0.3:
        options["env"] = {rng.choice(("N", "EXTRA", "1", "X")): mutation.piece(rng).replace("\0", "")}
    if rng.random() < 0.1:
        options["command"] = rng.choice((1, 2, 9))
    return mutation.data(rng, mutation.text(rng, seeds.scripts(rng.choice((dialect, None))))), options


def _document(rng: random.Random) -> tuple[bytes, dict[str, Any]]:
    texts = [text for framework in seeds.SETTINGS for text in seeds.yaml_texts(framework)]
    return mutation.data(rng, mutation.text(rng, texts)), _options(rng, None)


def _json(rng: random.Random) -> tuple[bytes, dict[str, Any]]:
    framework = rng.choice(list(seeds.SETTINGS))
    tree = mutation.tree(rng, as_groups(seeds.SETTINGS[framework]))
    text = json.dumps(tree, indent=rng.choice((None, 1)))
    return mutation.data(rng, mutation.text(rng, [text]) if rng.random() < 0.6 else text), _options(rng, framework)


def _file(suffix: str) -> Callable[[Path, tuple[bytes, dict[str, Any]]], tuple[Path, dict[str, Any]]]:
    def lay(folder: Path, made: tuple[bytes, dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
        path = folder / f"input{suffix}"
        path.write_bytes(made[0])
        return path, made[1]

    return lay


# ---- readers of smaller things


def _override(word: str) -> None:
    from batchbridge.kit.hydra_overrides import NotRead, parse_override

    try:
        parse_override(word)
    except NotRead as refused:
        if not str(refused).strip():
            raise Wrong("refused without a reason") from refused


def _scalar(text: str) -> None:
    try:
        render_json.dumps(arguments.parse_scalar(text))
    except ValueError as refused:
        if not str(refused).strip():
            raise Wrong("refused without a reason") from refused


def _edited(made: tuple[str, dict[str, Any]]) -> None:
    """`convert --into`: a text that is edited holds the old values and the changes, and else every byte."""
    text, changes = made
    try:
        edited = edit_yaml.edit(text, changes)
    except edit_yaml.CannotEdit as refused:
        if not str(refused).strip():
            raise Wrong("refused without a reason") from refused
        return
    if not changes and edited != text:
        raise Wrong("changed though nothing was asked for")


def _edit(rng: random.Random) -> tuple[str, dict[str, Any]]:
    dialect = rng.choice(list(seeds.SETTINGS))
    keys = [*seeds.SETTINGS[dialect], "base.a", "other", "new.key", "base"]
    chosen = rng.sample(keys, rng.choice((0, 1, 1, 2, 4)))
    changes = {key: edit_yaml.REMOVED if rng.random() < 0.2 else rng.choice(mutation.HOSTILE) for key in chosen}
    text = (
        rng.choice(seeds.yaml_texts(dialect)) if rng.random() < 0.3 else mutation.text(rng, seeds.yaml_texts(dialect))
    )
    return text, changes


def _doctor(made: tuple[str, dict[str, int]]) -> None:
    text, given = made
    for found in diagnosis.doctor(text, given, TEXTS):
        if not found.text.rule.strip() or found.line < 1 or any(not fix.text.strip() for fix in found.fixes):
            raise Wrong(f"ill-formed diagnosis: {found!r:.300}")
        json.dumps(found.to_dict())
        if control := CONTROL.search(render_between.diagnoses([found])):
            raise Wrong(f"control character {control.group()!r} is printed")


def _pasted(rng: random.Random) -> tuple[str, dict[str, int]]:
    names = ("n", "devices", "micro", "mini", "prompts", "global", "rollout")
    given = {name: rng.choice((0, 1, 7, 8, 999_999_999)) for name in names if rng.random() < 0.5}
    return mutation.text(rng, ["".join(rng.sample(seeds.DOCTOR, 2)), *seeds.DOCTOR]), given


SPEC_JSON = json.loads(json.dumps(ledgers.SPEC.to_dict()))


def _spec(tree: Any) -> None:
    try:
        spec = Spec.from_dict(tree)
    except ValueError as refused:
        if not str(refused).strip():
            raise Wrong("refused without a reason") from refused
        return
    findings = core_rules.check(spec, 8000, {})
    for finding in findings:
        well_formed(finding)
    if not any(finding.severity == "error" for finding in findings):
        again = Spec.from_dict(json.loads(json.dumps(spec.to_dict())))
        if again != spec or again.digest() != spec.digest():
            raise Wrong("a legal spec changes on its way through JSON")


def _commands(rng: random.Random) -> list[str]:
    framework = rng.choice(list(seeds.SETTINGS))
    options = ["--framework", seeds.FRAMEWORK[framework], "--framework-version", rng.choice(seeds.VERSIONS[framework])]
    settings = list(itertools.chain.from_iterable(("--set", word) for word in _settings_words(framework)))
    base = [
        rng.choice(("check", "explain", "plan", "check", "scale", "diff")),
        *options,
        "--world-size",
        "8",
        *settings,
    ]
    words = mutation.words(
        rng, [base, base, ["doctor", "input.txt"], ["ledger", "show", "a"], ["adapters"], ["schema"]]
    )
    # As a process gets them: without a zero byte, and in bytes, where those that are not a UTF-8 stand as surrogates.
    return [os.fsdecode(word.encode("utf-8", "surrogatepass")).replace("\0", "") for word in words]


def _settings_words(framework: str) -> Iterable[str]:
    return (f"{key}={json.dumps(value)}" for key, value in seeds.SETTINGS[framework].items())


def _no_writing(words: list[str]) -> list[str]:
    """Without the options that ask for a file to be written."""
    writing = ("-o", "--output", "--html", "--svg", "--csv", "--parquet")
    return [word for word in words if not word.startswith(writing) or word.startswith("--output-format=")]


PROJECT = """ignore = ["BB-TRL-065"]
framework = "trl"
fail_on = "warning"
baseline = "known.json"
[files."**/*.yaml"]
framework_version = "1.16.0"
world_size = 8
"""
KNOWN = '{"batchbridge_baseline": 1, "findings": [{"file": "recipe.yaml", "fingerprint": "0"}]}'
RECIPE = "num_generations: 6  # batchbridge: ignore BB-TRL-021, BB1\n# batchbridge: ignore-file BB121\nseed: 3\n"


def _project(rng: random.Random) -> tuple[dict[str, str], str]:
    """A project's settings, baseline and recipe, of which one is mutated, and a format."""
    texts = {"batchbridge.toml": PROJECT, "known.json": KNOWN, "recipe.yaml": RECIPE}
    name = rng.choice(list(texts))
    texts[name] = mutation.text(rng, [texts[name]])
    return texts, rng.choice(("text", "concise", "json", "github", "gitlab", "sarif", "junit"))


def _lay_project(folder: Path, made: tuple[dict[str, str], str]) -> list[str]:
    (folder / "project").mkdir(exist_ok=True)
    for name, text in made[0].items():
        (folder / "project" / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    return ["check", str(folder / "project" / "recipe.yaml"), f"--output-format={made[1]}"]


OLD = (
    "# a recipe\ntorch_dtype: bfloat16  # kept\nnum_generations: 8\nuse_vllm: true\noverwrite_output_dir: true\n"
    "per_gpu_train_batch_size: 4\nwarmup_ratio: 0.1\nevaluation_strategy: 'no'\n",
    '{"torch_dtype": float16, num_generations: 8, no_cuda: true, max_completion_length: 64}\n',
)
"""Recipes with keys under their old names."""


def _old(rng: random.Random) -> tuple[bytes, dict[str, Any]]:
    return mutation.data(rng, mutation.text(rng, OLD)), {}


def _fixed(laid: tuple[Path, dict[str, Any]]) -> bool:
    """`check --fix`: the new text reads back, holds the old values under the old or new names, and needs no more."""
    read = partial(batchbridge.read, framework="trl", version="1.16.0", world_size=8)
    path = laid[0]
    before = read(path)
    done = fix_file(path, before, before.findings, read)
    if done.new is None:
        if any(not problem.strip() for problem in done.problems):
            raise Wrong("refused without a reason")
        return False
    document = parse_yaml(done.new, str(path))
    old = parse_yaml(done.old, str(path)).value
    if document.problems or not isinstance(document.value, dict) or not isinstance(old, dict):
        raise Wrong("what would be written does not read back")
    if not {*document.value} - {*old} <= {gone.same for gone in GONE}:
        raise Wrong("a key came that is not a renamed one")
    kept = [value for key, value in old.items() if key != "overwrite_output_dir"]
    if repr(kept) != repr([value for key, value in document.value.items() if key != "overwrite_output_dir"]):
        raise Wrong("a value changed")
    source = batchbridge.Source(values=document.value, lines=document.lines, path=path)
    if safe_fixes(read(source).findings):
        raise Wrong("a second time there would be something to fix")
    return True


def _folder(rng: random.Random) -> dict[str, bytes]:
    """Files of a folder, one of them mutated."""
    files = {
        "a.yaml": rng.choice(seeds.yaml_texts("trl")),
        "below/b.sh": rng.choice(seeds.scripts("trl")),
        "c.yml": "num_processes: 8\n",
        "batchbridge.toml": 'framework_version = "1.16.0"\nfiles."*.yaml".world_size = 8\n',
    }
    name = rng.choice(list(files))
    laid = {name: text.encode("utf-8", "surrogatepass") for name, text in files.items()}
    return laid | {name: mutation.data(rng, mutation.text(rng, [files[name]]))}


def _lay_folder(folder: Path, made: dict[str, bytes]) -> list[str]:
    (folder / "runs" / "below").mkdir(exist_ok=True, parents=True)
    for name, data in made.items():
        (folder / "runs" / name).write_bytes(data)
    return ["check", str(folder / "runs")]


def _stdin(rng: random.Random) -> bytes:
    return mutation.data(rng, mutation.text(rng, [*seeds.yaml_texts("trl"), *seeds.scripts("trl")]))


def _piped(made: bytes) -> None:
    _command_line(["check", "-", "--framework-version", "1.16.0", "--world-size", "8"], made)


def _command_line(words: list[str], piped: bytes = b"x") -> None:
    out, err = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(piped))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(_no_writing(words))
    finally:
        sys.stdin = stdin
    if code not in (0, 2, 3, 4, 64):
        raise Wrong(f"exit code {code}")
    if "Traceback" in err.getvalue():
        raise Wrong("a traceback is printed")
    if found := CONTROL.search(out.getvalue()):
        raise Wrong(f"control character {found.group()!r} is printed")


# ---- the table

TEXTS = diagnosis.known_texts()


def table() -> list[Reader]:
    """Every reader; the cheap ones have the larger shares."""
    readers = [
        Reader("scalar", 28, lambda rng: mutation.text(rng, [*seeds.OVERRIDES, *mutation.WORDS]), _scalar),
        Reader("override", 30, lambda rng: mutation.text(rng, seeds.OVERRIDES), _override),
        Reader("spec", 10, lambda rng: mutation.tree(rng, SPEC_JSON), _spec),
        Reader("doctor", 26, _pasted, _doctor),
        Reader("yaml", 5, _document, lambda laid: read_and_judge(*laid), _file(".yaml")),
        Reader("json", 3, _json, lambda laid: read_and_judge(*laid), _file(".json")),
        Reader("script", 2.5, _script, lambda laid: read_and_judge(*laid), _file(".sh")),
        Reader("command", 0.4, _commands, _command_line),
        Reader("project", 0.8, _project, _command_line, _lay_project),
        Reader("folder", 0.3, _folder, _command_line, _lay_folder),
        Reader("stdin", 0.5, _stdin, _piped),
        Reader("fix", 1, _old, _fixed, _file(".yaml")),
        Reader("edit", 2, _edit, _edited),
        Reader("ledger", 3, ledgers.make, ledgers.act, ledgers.lay),
        Reader("page", 0.3, pages.make, pages.act),
    ]
    for framework in seeds.SETTINGS:
        cheap = framework in ("trl", "open_r1")
        readers += [
            Reader(
                f"{framework}-mapping", 0.7 if cheap else 0.45, _mapping(framework), lambda made: read_and_judge(*made)
            ),
            Reader(f"{framework}-argv", 0.7 if cheap else 0.45, _argv(framework), lambda made: read_and_judge(*made)),
            Reader(
                f"{framework}-yaml",
                0.7 if cheap else 0.45,
                _yaml(framework),
                lambda laid: read_and_judge(*laid),
                _file(".yaml"),
            ),
        ]
    return readers
