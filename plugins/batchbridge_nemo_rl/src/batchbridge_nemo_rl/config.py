"""NeMo-RL's adapter: its files and its command, and what the tables do not say. Imports neither NeMo-RL nor torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from batchbridge import Behaviour, Finding, Source, Spec, Where
from batchbridge.kit import set_on_top
from batchbridge.kit.config_texts import nested_yaml, shell_word
from batchbridge.kit.file_schema import changed
from batchbridge.kit.hydra_overrides import NotRead, parse_override
from batchbridge.kit.inherited_files import ComposedSource, compose
from batchbridge.kit.key_table import Codes, Key, settings_in
from batchbridge.kit.omegaconf import Resolver, Unresolved, typed
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import Told, shown
from batchbridge_nemo_rl.meaning import derive, is_async
from batchbridge_nemo_rl.rules import RULES
from batchbridge_nemo_rl.settings import FACTS, KEYS, STRICT, TOGETHER
from batchbridge_nemo_rl.writing import hydra_value, not_training, restate

BASE = "grpo_math_1B.yaml"
PROGRAM = "run_grpo"
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": max,
    "add": lambda a, b: a + b,
}
"""Source: utils/config.py register_omegaconf_resolvers."""


class NemoAdapter(TableAdapter):
    """Framework `nemo_rl`: GRPO."""

    framework = "nemo_rl"
    distribution = "nemo-rl"
    versions = ">=0.7"
    newest_version = "0.7.0"
    keys = KEYS
    together = TOGETHER
    constants: ClassVar[Mapping[str, Any]] = {  # Source: grpo.setup, shard_by_batch_size, DTensorPolicyWorker.train
        "order.last_rollout": "drop",
        "order.last_optimizer_step": "error",
        "horizon.lr_tick": "rollout",
        "objective.entropy_coefficient": 0.0,
    }
    follows = FACTS["follows"]
    codes = Codes.of("BB-NEMO")
    rules = RULES
    strict = STRICT
    interpolates = True

    def detect(self, source: Source) -> float:
        """Certain of its program; else the share of keys that are NeMo-RL's, or a file that inherits such."""
        if any(Path(word).stem.startswith(PROGRAM) for word in source.argv):
            return 1.0
        heads = {"grpo", "loss_fn", "policy", "checkpointing", "data", "env", "logger", "cluster", "data_plane"}
        said = {key.partition(".")[0] for key in source.values if isinstance(key, str)} - {"defaults"}
        own = {"grpo", "loss_fn", "policy"} & said
        named = "grpo" in str(source.values.get("defaults", ""))
        return 0.95 * len(said & heads) / len(said) if said and (named or "grpo" in own or len(own) > 1) else 0.0

    def settings_schema(self, version: str) -> dict[str, Any]:
        """As the rows say, with `defaults`, and null for a group that is off."""

        def group(schema: dict[str, Any]) -> dict[str, Any]:
            replaces = {"_override_": {"description": "true: this group takes the place of the inherited one."}}
            return {**schema, "type": ["object", "null"], "properties": {**schema["properties"], **replaces}}

        found = changed(super().settings_schema(version), group, lambda leaf: leaf)
        found["properties"]["defaults"] = {"description": "The files that this one inherits from."}
        return found

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """A file with those that it inherits from and a command's overrides, interpolations followed.

        Settings of free groups without a row are left out. Source: utils/config.py, examples/run_grpo.py.
        """
        problems: list[Finding] = []
        composed = self._command(source, problems) if source.argv else self._composed(source)
        said = dict(settings_in(composed.values, rows))
        nothing = [
            key for key, value in said.items() if value is None and any(row.startswith(f"{key}.") for row in rows)
        ]
        for key in nothing:  # a group that is off: grpo.async_grpo: null
            del said[key]
        defaults = {key: row.default for key, row in rows.items()}
        defaults |= {"policy.model_name": "", "policy.logprob_batch_size": "${policy.train_micro_batch_size}"}
        resolver = Resolver({**defaults, **said}, composed.env, composed.unknown, FUNCTIONS)
        known = {}
        for key, value in said.items():
            if key not in rows and not key.startswith(STRICT):
                continue
            known[key] = value
            if isinstance(value, str) and "${" in value and key not in composed.unknown:
                try:
                    known[key] = resolver.get(key)
                except (Unresolved, KeyError) as error:
                    place = Where(key, shown(value), composed.files.get(key), composed.lines.get(key))
                    text = f"{key} = {shown(value)}: {error}"
                    problems.append(Finding(self.codes.wrong_value, "error", "config", text, (place,)))
                    del known[key]
        values = {key: typed(value) for key, value in known.items()}
        strange = {key: value for key, value in composed.values.items() if not isinstance(key, str)}
        return replace(composed, values={**values, **strange}, problems=(*composed.problems, *problems))

    def _composed(self, source: Source) -> ComposedSource:
        return compose(source, "defaults", self.codes.wrong_value, replaces="_override_", bases={BASE: {}})

    def _command(self, source: Source, problems: list[Finding]) -> ComposedSource:
        """The file that --config names, looked for in the script's folder and those above it, with the overrides."""
        words, file = list(source.argv), None
        for place, word in enumerate(words):
            if word.partition("=")[0] == "--config":
                file = word.partition("=")[2] or (words[place + 1] if place + 1 < len(words) else None)
        base = ComposedSource(values={}, path=source.path, env=source.env)
        if file is not None:
            start = Path() if source.path is None else source.path.parent
            found = [folder / file for folder in (start, *start.absolute().parents) if (folder / file).is_file()]
            stem: Any = str(found[0]) if found else ("" if Path(file).name == BASE else file)
            if stem:
                folder = Path(stem)
                inner = compose(
                    Source(values={"defaults": folder.name}, path=folder),
                    "defaults",
                    self.codes.wrong_value,
                    replaces="_override_",
                    bases={BASE: {}},
                )
                base = replace(base, values=inner.values, lines=inner.lines, files=inner.files, problems=inner.problems)
        values, lines, files = dict(settings_in(base.values)), dict(base.lines), dict(base.files)
        changed = set_on_top(source.values, words)
        for key, value in (*_overrides(words, problems, self.codes.wrong_value), *changed.items()):
            for old in [old for old in values if old == key or old.startswith(f"{key}.")]:
                del values[old]
            values[key] = value
            spelled = next((name for name in (key, f"+{key}", f"++{key}") if name in source.lines), None)
            lines.pop(key, None)
            if spelled is not None:
                lines[key], files[key] = source.lines[spelled], str(source.path)
        unknown = {key.lstrip("+~"): names for key, names in source.unknown.items()}
        problems[:0] = base.problems
        return replace(
            base, values=values, lines=lines, files=files, argv=source.argv, problems=source.problems, unknown=unknown
        )

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Megatron's bound of the gradient is `policy.max_grad_norm`; 0 is off there."""
        return {"policy.megatron_cfg.optimizer.clip_grad": native["policy.max_grad_norm"] or 0.0}

    def apart(self, native: Mapping[str, Any]) -> int:
        """Devices that only generate, or score."""
        return not_training(native)

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, Told]:
        return derive(native)

    def restate(self, spec: Spec) -> Mapping[str, Any]:
        return restate(spec)

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        ahead = is_async(native)
        return Behaviour(
            order="torch's global generator, seeded by grpo.seed" if native["data.shuffle"] else "as the dataset is",
            membership="groups as they finish" if ahead else "consecutive completions",
            denominator_scope="optimizer_step",
            denominator_formula="1 / the step's valid tokens, or valid sequences and each one's tokens",
            lr_tick="rollout",
            resume="exact at the end of a rollout",
            undecided=("which groups a step has: those that finish first",) if ahead else (),
            source="NeMo-RL v0.7.0 grpo.setup, DTensorPolicyWorker.train, ClippedPGLossFn",
        )

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """A file over grpo_math_1B.yaml, and the command over the same."""
        words = [shell_word(f"++{key}={hydra_value(value)}") for key, value in values.items()]
        return {
            "yaml": f"defaults: {BASE}\n" + nested_yaml(values),
            "command": " \\\n  ".join(["uv run examples/run_grpo.py", *words]) + "\n",
        }


def _overrides(words: list[str], problems: list[Finding], code: str) -> Iterator[tuple[str, Any]]:
    """Source: utils/config.py parse_hydra_overrides, which takes every word that is not --config."""
    start = next((place for place, word in enumerate(words) if Path(word).stem.startswith(PROGRAM)), -1)
    for place, word in enumerate(words[start + 1 :], start + 1):
        if word.startswith("--config") or (place and words[place - 1] == "--config") or "=" not in word:
            continue
        try:
            said = parse_override(word)
        except NotRead as error:
            problems.append(
                Finding(code, "error", "config", str(error), (Where(word.partition("=")[0][:60], word[:60]),))
            )
            continue
        leaves = dict(settings_in({said.key: said.value})) if isinstance(said.value, dict) else {said.key: said.value}
        yield from leaves.items()
