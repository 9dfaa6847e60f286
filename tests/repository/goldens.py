"""Goldens of `explain`, `check` and `convert`: what they say of every source, as digests.

    python tests/repository/goldens.py                      rewrites goldens.json
    python tests/repository/goldens.py --texts FOLDER       writes the texts themselves, a file for each source
    python tests/repository/goldens.py --against FOLDER     shows where today's texts differ from those
    ... --only trl,open_r1                                  sources of these frameworks alone

Sources: each framework's plain configuration under old and new versions; the corpus's recipes and launch commands
(skipped where it is absent); and of each one, variations with a wrong size, a wrong value and an unknown key.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "between"))

from real import DATASET, VERSIONS, name_of, text_of  # noqa: E402  # found through the line above
from registered import adapters  # noqa: E402

from batchbridge import Reading, check, explain, read  # noqa: E402
from batchbridge.comparing.convert import convert_to  # noqa: E402

RECORD = HERE / "goldens.json"
CORPUS = HERE.parents[2] / "shared" / "corpus"
REPOSITORIES = {
    "verl-project/verl": "verl",
    "hiyouga/EasyR1": "easyr1",
    "OpenRLHF/OpenRLHF": "openrlhf",
    "allenai/open-instruct": "open_instruct",
}
OLDER = {
    "trl": ("0.15.2", "0.16.1", "0.17.0", "0.19.1", "0.22.0", "0.22.2", "0.26.2", "1.0.0", "1.13.0"),
    "open_r1": ("0.15.2", "0.17.0", "1.16.0"),
    "verl": ("0.4.0", "0.5.0", "0.6.1", "0.7.1", "0.8.0"),
    "easyr1": ("0.3.0", "0.3.1", "0.3.2"),
    "openrlhf": ("0.8.0", "0.8.11", "0.9.6", "0.10.4"),
    "open_instruct": ("2025.11.3",),
}
"""Versions beside the newest of `VERSIONS` under which the plain configurations are read."""
EVERY = 3
"""Each third launch command is converted and varied; all are explained and checked."""
NUMBER = re.compile(r"\d+")


class Golden(NamedTuple):
    """One source or variation of it: the framework it is read as, whether it is converted, and its reading. `corpus`:
    it needs that."""

    name: str
    variation: str
    framework: str
    whole: bool
    corpus: bool
    reading: Callable[[], Reading]


def sources(only: frozenset[str] = frozenset()) -> Iterator[Golden]:
    """Every source, named. Reads nothing before it is asked to."""
    for framework in VERSIONS:
        if only and framework not in only:
            continue
        for version in (VERSIONS[framework], *OLDER[framework]):
            yield from _plain(framework, version)
    for golden in _recipes() if CORPUS.exists() else ():
        if not only or golden.framework in only:
            yield golden
    for golden in _commands() if CORPUS.exists() else ():
        if not only or golden.framework in only:
            yield golden


def _plain(framework: str, version: str) -> Iterator[Golden]:
    def whole() -> Reading:
        with tempfile.TemporaryDirectory() as folder:
            before = Path.cwd()
            os.chdir(folder)  # paths in texts are relative
            try:
                path = Path(name_of(framework))
                path.write_text(text_of(framework), encoding="utf-8")
                return read(path, framework=framework, version=version, **_world(framework), dataset_size=DATASET)
            finally:
                os.chdir(before)

    yield Golden(f"plain/{framework}/{version}", "", framework, True, False, whole)
    if framework in ("trl", "open_r1"):
        values = yaml.safe_load(text_of(framework))
        for what, changed in varied(values):
            yield Golden(
                f"plain/{framework}/{version}",
                what,
                framework,
                False,
                False,
                lambda changed=changed: read(changed, framework=framework, version=version, world_size=8),
            )
        return
    words = text_of(framework).replace("\\\n", " ").replace('"$@"', "").split()
    words = [word.replace("$GPUS", "8") for word in words[words.index("-m") - 1 if "-m" in words else -1 :]]
    if "-m" not in words:
        text = text_of(framework).replace("\\\n", " ").split()
        words = text[text.index("python") :]
    for what, argv in varied_words(words):
        yield Golden(
            f"plain/{framework}/{version}",
            what,
            framework,
            False,
            False,
            lambda argv=argv: read(argv, framework=framework, version=version, dataset_size=DATASET),
        )


def _world(framework: str) -> dict[str, int]:
    return {"world_size": 8} if framework in ("trl", "open_r1") else {}


def _recipes() -> Iterator[Golden]:
    for path in sorted((CORPUS / "configs").rglob("*.yaml")):
        framework = "easyr1" if path.name == "config.yaml" else "open_r1" if path.parent.name == "grpo" else None
        if framework is None:
            continue
        name = path.relative_to(CORPUS).as_posix()

        def whole(name: str = name, framework: str = framework) -> Reading:
            before = Path.cwd()
            os.chdir(CORPUS)
            try:
                version = VERSIONS[framework]
                return read(name, framework=framework, version=version, world_size=8, dataset_size=DATASET)
            finally:
                os.chdir(before)

        yield Golden(name, "", framework, True, True, whole)


def _commands() -> Iterator[Golden]:
    rows = map(json.loads, (CORPUS / "launch_argv.jsonl").read_text(encoding="utf-8").splitlines())
    count = itertools.count()
    for row in rows:
        framework = REPOSITORIES[row["repository"]]
        version = VERSIONS[framework]
        for at, words in enumerate(row["commands"]):
            number = next(count)
            name = f"{framework}/{row['path']}/{at}"
            yield Golden(
                name,
                "",
                framework,
                number % EVERY == 0,
                True,
                lambda words=words, version=version: read(words, version=version, dataset_size=DATASET),
            )
            if number % EVERY == 0:
                for what, changed in varied_words(words):
                    yield Golden(
                        name,
                        what,
                        framework,
                        False,
                        True,
                        lambda words=changed, version=version: read(words, version=version, dataset_size=DATASET),
                    )


def varied(values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, values) with each number one larger, each value a word, and an unknown key."""
    for key, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{key}+1", {**values, key: value + 1}
        yield f"{key}=word", {**values, key: "word"}
    yield "unknown", {**values, "num_generation": 4}


def varied_words(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(name, words) with each whole number one larger, a word in its place, and an unknown setting."""
    dashed = any(word.startswith("--") for word in words)
    for at, word in enumerate(words):
        before, sign, value = word.rpartition("=")
        if NUMBER.fullmatch(value) and (sign or (at and words[at - 1].startswith("--"))):
            key = before or words[at - 1]
            yield f"{at}:{key}+1", [*words[:at], f"{before}{sign}{int(value) + 1}", *words[at + 1 :]]
            yield f"{at}:{key}=word", [*words[:at], f"{before}{sign}word", *words[at + 1 :]]
    yield "unknown", [*words, *(("--num_generation", "4") if dashed else ("data.train_batch_siz=4",))]


def texts(golden: Golden) -> dict[str, str]:
    """Subject ("explain", "check", "to verl", ...) to its text."""
    reading = golden.reading()
    found = {
        "check": f"{check(reading, name='it')}\n{_json(check(reading, name='it').to_dict())}",
        "explain": f"{explain(reading, name='it')}\n{_json(reading.to_dict())}",
    }
    for framework, adapter in adapters().items() if golden.whole and reading.spec is not None else ():
        if framework != reading.framework:
            made = convert_to(adapter, reading, version=VERSIONS[framework], given=reading.native)
            forms = {} if made.written is None else made.written.text
            found[f"to {framework}"] = "\n".join([_json(made.to_dict()), *forms.values()])
    return found


def _json(value: object) -> str:
    return json.dumps(value, indent=1, default=str)


def digest(subject: str) -> str:
    """12 hex digits of a text."""
    return hashlib.blake2b(subject.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def digests(goldens: Iterable[Golden]) -> dict[str, dict[str, str]]:
    """Source to subject to the digest of its texts, over all variations."""
    said: dict[str, dict[str, list[str]]] = {}
    for golden in goldens:
        for subject, text in texts(golden).items():
            said.setdefault(golden.name, {}).setdefault(subject, []).append(f"{golden.variation}\n{text}")
    return {
        name: {subject: digest("\0".join(all_of_it)) for subject, all_of_it in subjects.items()}
        for name, subjects in said.items()
    }


def recorded() -> dict[str, dict[str, str]]:
    """As `digests`, as committed."""
    found: dict[str, dict[str, str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def file_of(folder: Path, golden: Golden) -> Path:
    """Where the texts of a source or variation lie."""
    name = f"{golden.name}/{golden.variation}".rstrip("/")
    return folder / f"{re.sub('[^A-Za-z0-9.+=-]', '_', name)[-150:]}-{digest(name)}.json"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=20, help="differences shown, 12 lines each")
    asked = parser.parse_args()
    chosen = sources(frozenset(filter(None, asked.only.split(","))))
    if not asked.texts and not asked.against:
        # What was not read stays as it was: another framework's sources, and the corpus's where that is absent.
        record = (recorded() if asked.only or not CORPUS.exists() else {}) | digests(chosen)
        RECORD.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{sum(map(len, record.values()))} digests of {len(record)} sources")
        return
    differing, total = 0, 0
    for golden in chosen:
        said = texts(golden)
        if asked.texts:
            asked.texts.mkdir(parents=True, exist_ok=True)
            file_of(asked.texts, golden).write_text(json.dumps(said), encoding="utf-8")
        if asked.against:
            before = json.loads(file_of(asked.against, golden).read_text(encoding="utf-8"))
            for subject in sorted({*before, *said}):
                total += 1
                one, two = before.get(subject, "").splitlines(), said.get(subject, "").splitlines()
                if one != two:
                    differing += 1
                    if differing <= asked.show:
                        lines = list(difflib.unified_diff(one, two, lineterm="", n=0))[2:14]
                        print(f"{golden.name} {golden.variation}: {subject}", *lines, sep="\n    ")
    if asked.against:
        print(f"{differing} of {total} texts differ")


if __name__ == "__main__":
    main()
