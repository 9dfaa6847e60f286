"""NeMo-RL's adapter: its files and its command, and what the tables do not say. Imports neither NeMo-RL nor torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import add, mul, truediv
from pathlib import Path
from typing import Any

from batchbridge import Behaviour, Finding, Fix, Source, Where
from batchbridge.kit import near_file, set_on_top
from batchbridge.kit.config_texts import nested_yaml, shell_word
from batchbridge.kit.file_schema import changed
from batchbridge.kit.hydra_overrides import NotRead, parse_override
from batchbridge.kit.inherited_files import ComposedSource, compose
from batchbridge.kit.key_table import Codes, Key, groups_of, settings_in
from batchbridge.kit.omegaconf import Resolver
from batchbridge.kit.omegaconf_settings import followed
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge_nemo_rl import settings
from batchbridge_nemo_rl.meaning import derive, is_async
from batchbridge_nemo_rl.rules import RULES
from batchbridge_nemo_rl.writing import hydra_value, not_training, restate

BASE = "grpo_math_1B.yaml"
PROGRAM = "run_grpo"
PROGRAMS: Mapping[str, str] = settings.FACTS["programs"]
"""Programs with the files that they take without --config, from their own folder."""
FUNCTIONS: Mapping[str, Callable[..., Any]] = {"mul": mul, "div": truediv, "max": max, "add": add}
"""Source: utils/config.py register_omegaconf_resolvers."""


class NemoAdapter(TableAdapter):
    """Framework `nemo_rl`: GRPO."""

    framework = "nemo_rl"
    distribution = "nemo-rl"
    versions = ">=0.7"
    newest_version = "0.7.0"
    keys = settings.KEYS
    declared = settings.DECLARED
    together = settings.TOGETHER
    constants = settings.FACTS["constants"]
    follows = settings.FACTS["follows"]
    codes = Codes.of("BB-NEMO")
    outside = "batchbridge_nemo_rl.outside:OUTSIDE"
    rules = RULES
    strict = settings.STRICT
    interpolates = True
    apart, derive, restate = staticmethod(not_training), staticmethod(derive), staticmethod(restate)

    def detect(self, source: Source) -> float:
        """Certain of its program; else the share of keys that are NeMo-RL's, or a file that inherits such."""
        if any(map(_is_program, source.argv)):
            return 1.0
        heads = {"grpo", "loss_fn", "policy", "checkpointing", "data", "env", "logger", "cluster", "data_plane"}
        said = {key.partition(".")[0] for key in source.values if isinstance(key, str)} - {"defaults"}
        own = {"grpo", "loss_fn", "policy"} & said
        named = "grpo" in str(source.values.get("defaults", ""))
        return 0.95 * len(said & heads) / len(said) if said and (named or "grpo" in own or len(own) > 1) else 0.0

    def settings_schema(self, version: str) -> dict[str, Any]:
        """Settings as the rows say, with `defaults`."""

        def group(schema: dict[str, Any]) -> dict[str, Any]:
            replaces = {"_override_": {"description": "true: this group takes the place of the inherited one."}}
            return {**schema, "properties": {**schema["properties"], **replaces}}

        found = changed(super().settings_schema(version), group, lambda leaf: leaf)
        found["properties"]["defaults"] = {"description": "The files that this one inherits from."}
        return found

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """A file with those that it inherits from and a command's overrides, interpolations followed.

        Settings of free groups without a row are left out. Source: utils/config.py, examples/run_grpo.py.
        """
        source = self._command(source) if source.argv else self._composed(source)
        said = dict(settings_in(source.values, rows))
        defaults = {key: row.default for key, row in rows.items()}
        defaults |= {"policy.model_name": "", settings.FORWARD: f"${{{settings.MICRO}}}"}
        if said.get("policy.optimizer", said) is None:
            said.setdefault("policy.optimizer.name", None)
        resolver = Resolver({**defaults, **said}, source.env, source.unknown, FUNCTIONS)
        known = {*rows, *groups_of(rows)} - {"data.train", "data.validation"}  # or lists of datasets
        said = {key: said[key] for key in said if key in known or key.startswith(settings.STRICT)}
        return followed(source, said, resolver, self.codes.wrong_value)

    def _composed(self, source: Source) -> ComposedSource:
        return compose(source, "defaults", self.codes.wrong_value, replaces="_override_", bases={BASE: {}})

    def _wrong(self, text: str, place: Where) -> Finding:
        return Finding(self.codes.wrong_value, "error", "config", text, (place,))

    def _command(self, source: Source) -> ComposedSource:
        """The file that --config names, else the program's own, with the overrides.

        Source: utils/config.py parse_hydra_overrides, which takes every word that is not --config.
        """
        said: list[tuple[str, Any]] = []
        bad: list[Finding] = []
        start = next((place for place, word in enumerate(source.argv) if _is_program(word)), -1)
        program = Path(source.argv[start] if start >= 0 else PROGRAM)
        given, own = source.values.get("config"), program.parent / PROGRAMS.get(program.stem, "<its own file>")
        path = near_file(file := str(given or own), source.path)
        if path is None and Path(file).name != BASE:
            bad = [self._wrong(f"{program.name} reads {file}, which is not there", Where("config", file))]
            if not given or "config" in source.unknown:
                bad = [replace(bad[0], code=self.codes.undecided, undecided=True, fixes=(Fix("--config FILE"),))]
            return self._composed(replace(source, values={}, problems=(*source.problems, *bad)))
        for word in source.argv[start + 1 :]:
            if "=" in word and not word.startswith("--config"):
                try:
                    override = parse_override(word)
                    said += settings_in({override.key: override.value})
                except NotRead as error:
                    bad.append(self._wrong(str(error), Where(word.partition("=")[0][:60], word[:60])))
        unknown = {key.lstrip("+~"): names for key, names in source.unknown.items()}
        inherits = {"defaults": path.name} if path else {}
        base = self._composed(replace(source, values=inherits, path=path, lines={}, unknown=unknown))
        values, lines, files = dict(settings_in(base.values)), dict(base.lines), dict(base.files)
        for key, value in (*said, *set_on_top(source.values, source.argv).items()):
            values = {old: kept for old, kept in values.items() if not f"{old}.".startswith(f"{key}.")} | {key: value}
            lines.pop(key, None)
            for spelled in (f"++{key}", f"+{key}", key):
                if spelled in source.lines:
                    lines[key], files[key] = source.lines[spelled], str(source.path)
        return replace(base, values=values, lines=lines, files=files, path=source.path, problems=(*base.problems, *bad))

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Megatron's bound of the gradient is `policy.max_grad_norm`; 0 is off there."""
        return {"policy.megatron_cfg.optimizer.clip_grad": native["policy.max_grad_norm"] or 0.0}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        order = "torch's global generator, seeded by grpo.seed" if native["data.shuffle"] else "as the dataset is"
        first = ("which groups a step has: those that finish first",) if is_async(native) else ()
        members = "groups as they finish" if first else "consecutive completions"
        return Behaviour(order=order, membership=members, undecided=first, **settings.FACTS["behaviour"])

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """A file over grpo_math_1B.yaml, and the command over the same."""
        words = [shell_word(f"++{key}={hydra_value(value)}") for key, value in values.items()]
        return {
            "yaml": f"defaults: {BASE}\n" + nested_yaml(values),
            "command": " \\\n  ".join(["uv run examples/run_grpo.py", *words]) + "\n",
        }


def _is_program(word: str) -> bool:
    return Path(word).stem.startswith((PROGRAM, *PROGRAMS))
