"""The table of mutants: one change of every module that acts on a run, and the test command that must find it.

A row's text stands in its module exactly once (tests/repository/test_mutants.py), and names no class where it can do
without. A test command is the cheapest one that turns red.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mutants_of_adapters import FRAMEWORKS

Tier = Literal["default", "by name", "checkout"]
Row = tuple[str, str, str, str]
"""Module, its text, what stands there instead, and the tests as words."""


@dataclass(frozen=True)
class Mutant:
    """One change, and what finds it. module: path from the repository's root. session: whose environment runs the
    tests. tier: whether a plain `nox` runs them, only one that names their session, or only one that has a checkout of
    the framework."""

    module: str
    text: str
    instead: str
    session: str
    tests: tuple[str, ...]
    tier: Tier = "default"

    @property
    def name(self) -> str:
        """The module as it is imported."""
        path = self.module.removesuffix(".py").removeprefix("src/").removeprefix("adapters/")
        return path.replace("/", ".")


def _rows(folder: str, session: str, rows: Sequence[Row], tier: Tier = "default") -> Iterator[Mutant]:
    for module, text, instead, tests in rows:
        words = tuple(tests.split())
        yield Mutant(f"{folder}/{module}.py", text, instead, session, words, tier)


def _tier(session: str) -> Tier:
    if session in ("ms_swift", "unsloth", "verl_071"):
        return "by name"
    return "checkout" if session in ("easyr1", "open_instruct") else "default"


_CORE = (
    ("meaning/plan", "prompt) + sample", "prompt)", "tests/core/test_plan.py"),
    ("meaning/order", "(value >> 30)", "(value >> 29)", "tests/core/test_order.py"),
    ("meaning/weights", "return 1.0 / self.tokens", "return 1.5 / self.tokens", "tests/core/test_weights.py"),
    ("meaning/advantages", "value *= count / max(count - 1, 1)", "value *= 1.5", "tests/core/test_advantages.py"),
    (
        "meaning/micro_batches",
        "key=lambda i: (-costs[i], i)",
        "key=lambda i: (costs[i], i)",
        "tests/core/test_microbatch.py",
    ),
    (
        "meaning/stream",
        "return 1 + self._locate(unit, end - 1)[0]",
        "return self._locate(unit, end - 1)[0]",
        "tests/core/test_plan.py",
    ),
    (
        "meaning/candidates",
        "self.dataset_size)) for number in range(start, stop)",
        "self.dataset_size)) for number in range(start + 1, stop + 1)",
        "tests/core/test_candidates.py",
    ),
    (
        "meaning/critic_run",
        '"passes_per_rollout", "rollout_shuffle"',
        '"rollout_shuffle",',
        "tests/core/test_critic.py",
    ),
    (
        "kit/workers",
        "compare_with_plan(self.plan, step, seen, said, dict(losses))",
        "pass",
        "tests/core/test_recorder.py",
    ),
    (
        "kit/workers",
        "(None, None, value) for value in known.items()",
        "(None, None, value) for value in ()",
        "tests/core/test_recorder.py",
    ),
    (
        "kit/workers",
        "steps = -(-own.completions_per_rollout //",
        "steps = (own.completions_per_rollout //",
        "tests/core/test_recorder.py",
    ),
    (
        "kit/rank_ledger",
        "if refused or self._required:",
        "if refused:",
        "tests/core/test_recorder.py",
    ),
    (
        "kit/step_driver",
        "[divmod(position, group) for position in step.positions]",
        "[divmod(position, group) for position in step.positions[1:]]",
        "tests/adapters/easyr1/upstream_values",
    ),
    (
        "kit/ranks",
        "blocks[rank] += [*parts[part], *[None] * (rows_per_micro_batch - len(parts[part]))]",
        "blocks[rank] += parts[part]",
        "tests/adapters/verl/test_runtime_verl.py",
    ),
    ("kit/drift", "rel_tol=row.tolerance", "rel_tol=0.5", "tests/core/test_recorder.py"),
    ("kit/drift", "if abs(off) <= tolerance * size or", "if True or", "tests/core/test_recorder.py"),
    ("kit/producers", "<= ruled.rooms[place]:", "<= 9.0:", "tests/core/test_producers.py"),
    ("kit/row_digests", "if found.get(name) != digest]", "if name not in found]", "tests/core/test_producers.py"),
    (
        "kit/checkpoints",
        "return min(plan.rollout(rollout).generated_at_step,",
        "return min(plan.rollout(rollout).generated_at_step + 1,",
        "tests/core/test_checkpoints.py",
    ),
    (
        "kit/lifecycle",
        "            _undo(patches, patched)\n",
        "",
        "tests/core/test_lifecycle.py",
    ),
    (
        "kit/identified_rows",
        "list(range(start, start + len(prompts)))",
        "list(range(len(prompts)))",
        "tests/adapters/easyr1/test_runtime_easyr1.py tests/adapters/verl/test_runtime_verl.py",
    ),
    (
        "kit/step_cost",
        "(one.prompt for one in lengths), default=0) + max(",
        "(one.prompt for one in lengths), default=0) + 0 * max(",
        "tests/core/test_step_cost.py",
    ),
    (
        "kit/packed_batches",
        "batch.tokens + tokens > self._tokens",
        "batch.tokens + tokens > 2 * self._tokens",
        "tests/core/test_packing.py",
    ),
    ("kit/packable", "and said[name] > 0", "and said[name] > 1", "tests/between/test_packable_families.py"),
    (
        "kit/token_budgets",
        "return None if found_cut == wanted",
        "return None if found_cut",
        "tests/core/test_budgets.py tests/adapters/verl/test_runtime_verl.py",
    ),
    (
        "kit/torch_random",
        "for place in range(size - 1)",
        "for place in range(1, size - 1)",
        "tests/adapters/easyr1/upstream_values -k order",
    ),
    (
        "kit/native_steps",
        "range(0, size - prompts + 1, prompts)",
        "range(0, size - prompts, prompts)",
        "tests/adapters/easyr1/upstream_values -k order",
    ),
    ("kit/ticked_schedule", "if self._due():", "if True:", "tests/adapters/easyr1/test_runtime_easyr1.py"),
    ("kit/schedules", "{rate / peak:", "{1.5 * rate / peak:", "tests/core/test_schedules.py"),
    (
        "meaning/prompt_digest",
        "found[str(number + 1)] = sample.hexdigest()",
        'found[str(number + 1)] = "same"',
        "tests/core/test_prompt_digest.py",
    ),
    ("kit/clipping", "return canonical or UNREACHED", "return canonical", "tests/between/test_clipping.py"),
    ("kit/observing", "return seen.returned", "return ()", "tests/core/test_observing.py"),
    ("kit/patches", "for undo, _ in reversed(changes)", "for undo, _ in changes", "tests/core/test_patching.py"),
)

_TORCH = "tests/adapters/trl/native"
_LAYER = "tests/adapters/easyr1/upstream_values/native/test_engine_easyr1.py"
"""Tests of a worker's layer over a stand-in of EasyR1's actor."""
_OF_EASYR1 = (
    (
        "kit/replicas",
        "return [row for part in parts for row in part]",
        "return parts[dist.get_rank(group)]",
        "tests/adapters/easyr1/native/test_gradients_easyr1.py -k [2]",
    ),
)
_OF_TORCH = (
    (
        "kit/probing",
        "abs(row.weight / weight - 1) > row.tolerance",
        "abs(row.weight / weight - 1) > 9",
        f"{_TORCH}/test_measuring.py",
    ),
    (
        "kit/measuring",
        "seen.value, seen.loss_gradient = (loss.detach() - beside) * times, None",
        "seen.value, seen.loss_gradient = loss.detach() * times, None",
        f"{_TORCH}/test_measuring.py",
    ),
    (
        "kit/measuring",
        "return self.value.double() * self.loss_gradient.double()",
        "return self.value.double()",
        f"{_TORCH}/test_measuring.py",
    ),
    (
        "kit/joined_rows",
        "repeat_interleave(sizes)",
        "repeat_interleave(sizes) * 0",
        f"{_TORCH}/test_joined_rows.py",
    ),
    (
        "kit/measuring",
        "weight = (found * sure).sum(1)",
        "weight = (1.5 * found * sure).sum(1)",
        f"{_TORCH}/test_measuring.py",
    ),
    (
        "kit/ddp_exchange",
        "kinds = {HALF[name] for name in found if name in HALF}",
        "kinds: set[torch.dtype] = set()",
        f"{_TORCH}/test_ddp_hooks.py",
    ),
    (
        "kit/rounding",
        "torch.finfo(own).eps * change",
        "0 * change",
        "tests/testing/native/test_rounding.py",
    ),
    (
        "kit/objectives",
        "penalty = 0.5 * difference**2",
        "penalty = 1.5 * difference**2",
        "tests/testing/native/test_objectives.py",
    ),
    (
        "kit/packing",
        "predictors += [end - 1, *range",
        "predictors += [end - 2, *range",
        f"{_TORCH}/test_padding_free.py -k oracles",
    ),
    (
        "kit/carried_rows",
        "values = values[:length]",
        "values = values[: length - 1]",
        "tests/testing/native/test_carried_rows.py",
    ),
    (
        "kit/model_inputs",
        "if place in names and not bool(alike)",
        "if place in names and alike is None",
        "tests/testing/native/test_carried_rows.py",
    ),
    ("kit/before_update", "if not self._depth:", "if True:", "tests/testing/native/test_before_update.py"),
    (
        "kit/step_probe",
        "most / (whole_norm(norm) + 1e-6)",
        "1.5 * most / (whole_norm(norm) + 1e-6)",
        "tests/testing/native/test_step_probe.py",
    ),
    ("kit/own_terms", "if own and not allowed and", "if False and", "tests/testing/native/test_own_terms_of_losses.py"),
    (
        "kit/optimizer_groups",
        "if LEARNING_RATE not in self._allowed:",
        "if False:",
        "tests/testing/native/test_optimizer_groups.py",
    ),
    (
        "kit/new_start",
        "checkpoint is not None and not again",
        "False",
        f"{_TORCH}/test_restart.py -k ledger_whose_run_can_go_on",
    ),
    ("kit/worker_layer", "step != self._last + 1:", "step > self._last + 1:", _LAYER),
    ("kit/replicas", "            drift = error\n", "            pass\n", _LAYER),
    ("kit/update_layer", "with self._watch.differentiating(), self.updating", "with self.updating", _LAYER),
    ("kit/update_probe", "self._tap.take(scale=self._scale)", "self._tap.take(scale=1.5 * self._scale)", _LAYER),
    (
        "kit/gradient_sketches",
        "apart > bar or factor > bar * share",
        "apart > 99 * bar or factor > 99 * bar * share",
        "tests/testing/native/test_gradient_sketches.py",
    ),
    (
        "kit/gradient_sketches",
        "first = zlib.crc32(one.name.encode()) % _WINDOWS\n",
        "first = 0\n        table[:] = 1.0\n",
        "tests/testing/native/test_gradient_sketches.py",
    ),
    (
        "kit/gradient_sketches",
        "        self._turn += 1\n",
        "        pass\n",
        "tests/testing/native/test_gradient_sketches.py",
    ),
    (
        "kit/gradient_origins",
        "        del hooks[key]\n",
        "        continue\n",
        "tests/testing/native/test_gradient_sketches.py",
    ),
    (
        "kit/gradient_origins",
        "return Part(piece, held.intra_param_start_idx, _world() // shards)",
        "return Part(piece, 0, _world() // shards)",
        f"{_TORCH}/test_fsdp.py -k oracles",
    ),
    (
        "kit/gradient_origins",
        "handle.world_size if handle.uses_sharded_strategy else 1",
        "handle.world_size",
        f"{_TORCH}/test_fsdp.py -k oracles",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *_rows("src/batchbridge", "core", _CORE),
    *_rows("src/batchbridge", "trl", _OF_TORCH),
    *_rows("src/batchbridge", "easyr1", _OF_EASYR1, "checkout"),
    *(
        mutant
        for framework, sessions in FRAMEWORKS.items()
        for session, rows in sessions.items()
        for mutant in _rows(f"adapters/batchbridge_{framework}", session, rows, _tier(session))
    ),
)
