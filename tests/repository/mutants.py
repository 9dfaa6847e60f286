"""The table of mutants: one change of every module that acts on a run, and the test command that must find it.

A row's text stands in its module exactly once (tests/repository/test_mutants.py), and names no class where it can do
without. A test command is the cheapest one that turns red.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mutants_of_adapters import FRAMEWORKS

Tier = Literal["default", "checkout"]
Row = tuple[str, str, str, str]
"""Module, its text, what stands there instead, and the tests as words."""


@dataclass(frozen=True)
class Mutant:
    """One change, and what finds it. module: path from the repository's root. session: whose environment runs the
    tests. tier: whether a plain `nox` runs them, or only one that has a checkout of the framework."""

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
    ("kit/workers", "compare_with_plan(self.plan, step, seen, said)", "pass", "tests/core/test_recorder.py"),
    (
        "kit/workers",
        "steps = -(-own.completions_per_rollout //",
        "steps = (own.completions_per_rollout //",
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
        "order += [*rows, *[None] * (micro - len(rows))]",
        "order += rows",
        "tests/adapters/easyr1/upstream_values",
    ),
    ("kit/drift", "rel_tol=row.tolerance", "rel_tol=0.5", "tests/core/test_recorder.py"),
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
        "<= equal:",
        "<= 1.5 * equal:",
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
    ("kit/schedules", "{rate / peak:", "{1.5 * rate / peak:", "tests/core/test_schedules.py"),
    ("kit/clipping", "return canonical or UNREACHED", "return canonical", "tests/between/test_clipping.py"),
    ("kit/observing", "return seen.returned", "return ()", "tests/core/test_observing.py"),
    ("kit/patches", "for undo, _ in reversed(changes)", "for undo, _ in changes", "tests/core/test_patching.py"),
)

_TORCH = "tests/adapters/trl/native"
_OF_TORCH = (
    (
        "kit/probing",
        "abs(row.weight / weight - 1) > row.tolerance",
        "abs(row.weight / weight - 1) > 9",
        f"{_TORCH}/test_measuring.py",
    ),
    (
        "kit/measuring",
        "weight = (found * unit).sum(1)",
        "weight = (1.5 * found * unit).sum(1)",
        f"{_TORCH}/test_measuring.py",
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
    ("kit/sharded", "return (whole / copies)", "return (1.5 * whole / copies)", f"{_TORCH}/test_fsdp.py -k oracles"),
)

MUTANTS: tuple[Mutant, ...] = (
    *_rows("src/batchbridge", "core", _CORE),
    *_rows("src/batchbridge", "trl", _OF_TORCH),
    *(
        mutant
        for framework, sessions in FRAMEWORKS.items()
        for session, rows in sessions.items()
        for mutant in _rows(f"adapters/batchbridge_{framework}", session, rows, _tier(session))
    ),
)
