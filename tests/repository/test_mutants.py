"""The table of mutants is whole: every acting module has a row, and every row's text stands in its module once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant
from mutations import FOUND, NOT_RUN, SURVIVED, Outcome, faults, main, page_of, write

ACTING = {
    "src/batchbridge/meaning": (
        *("advantages", "candidates", "critic_run", "micro_batches", "order", "plan", "prompt_digest"),
        *("stream", "weights"),
    ),
    "src/batchbridge/kit": (
        *("before_update", "carried_rows", "checkpoints", "clipping", "drift", "identified_rows", "lifecycle"),
        *("measuring", "model_inputs"),
        *("native_steps", "objectives", "packable", "packed_batches", "packing", "patches", "probing", "ranks"),
        *("new_start", "optimizer_groups", "own_terms", "producers", "rank_ledger", "row_digests"),
        *("gradient_origins", "gradient_sketches", "replicas", "schedules", "step_cost", "step_driver", "step_probe"),
        *("token_budgets",),
        *("ticked_schedule", "torch_random", "update_layer", "update_probe", "worker_layer", "workers"),
    ),
}
"""Folder of the core -> its modules that decide what a run trains."""
NAMES = (
    *("advantages", "ahead", "apart", "asynchronous", "attaching", "behaviour", "candidates*", "carriers"),
    *(
        "checkpoints",
        "clock",
        "columns",
        "critic",
        "critic_engine",
        "distillation",
        "driver",
        "engine",
        "epochs",
        "exchange",
    ),
    *("finished", "inputs"),
    *("copied_steps", "legacy", "swift_rows", "swift_steps", "unsloth_steps"),
    *("feed", "images", "learners", "loss_terms", "membership", "metrics", "observe", "other_engines", "padding_free"),
    *("probe", "queued", "recording", "rings", "rows", "runtime", "sampling", "scoring", "sequences", "sharding"),
    *("shared_prompts", "shares", "sharing", "trainer*", "turns", "watching", "weights"),
)
"""Names of an adapter's modules that decide it, where it has them."""
WORDS_ALONE = {"batchbridge_verl/ahead", "batchbridge_open_instruct/behaviour"}
"""Modules of such a name that only read a configuration, or only say something."""


def acting(repository: Path) -> set[str]:
    found = {f"{folder}/{name}.py" for folder, names in ACTING.items() for name in names}
    for adapter in sorted((repository / "adapters").iterdir()):
        for name in NAMES:
            found |= {str(file.relative_to(repository)) for file in adapter.glob(f"{name}.py")}
    return found - {f"adapters/{name}.py" for name in WORDS_ALONE}


def test_every_rows_text_stands_in_its_module_once_and_its_tests_are_there(repository: Path) -> None:
    assert faults(MUTANTS, repository) == []


def test_every_acting_module_has_a_row(repository: Path) -> None:
    assert acting(repository) - {one.module for one in MUTANTS} == set()


def test_every_acting_module_has_a_row_that_needs_no_checkout(repository: Path) -> None:
    """EasyR1's and Open-Instruct's are held against what upstream was recorded to give, or against stand-ins."""
    assert acting(repository) - {one.module for one in MUTANTS if one.tier != "checkout"} == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "a text that nobody wrote"},
        {"text": "import"},
        {"instead": MUTANTS[0].text},
        {"module": "src/batchbridge/nowhere.py"},
        {"tests": ("tests/core/test_nowhere.py",)},
    ],
)
def test_a_row_that_says_nothing_is_a_fault(repository: Path, changed: dict[str, object]) -> None:
    assert len(faults([dataclasses.replace(MUTANTS[0], **changed)], repository)) == 1  # type: ignore[arg-type]


def test_a_row_that_was_not_run_keeps_what_the_page_says_of_it() -> None:
    one, two = MUTANTS[:2]
    before = page_of([Outcome(one, FOUND), Outcome(two, NOT_RUN)], "abc")
    assert f"| {one.name} |" in before
    assert "1 of 2 are found; 1 were not run." in before
    after = page_of([Outcome(one, NOT_RUN), Outcome(two, FOUND)], "def", before)
    assert "2 of 2 are found; 0 were not run." in after
    assert [line.count("abc") for line in after.splitlines() if line.startswith(f"| {one.name} |")] == [1]


def test_a_row_with_another_text_does_not_keep_it() -> None:
    one = MUTANTS[0]
    before = page_of([Outcome(one, FOUND)], "abc")
    other: Mutant = dataclasses.replace(one, instead="something else")
    assert "0 of 1 are found; 1 were not run." in page_of([Outcome(other, NOT_RUN)], "def", before)


def test_a_page_is_written_row_by_row_and_keeps_the_rows_of_other_nights(tmp_path: Path) -> None:
    page = tmp_path / "mutations.md"
    one, two = MUTANTS[0], MUTANTS[-1]
    write(page, Outcome(one, FOUND), "0a0a0a0a")
    write(page, Outcome(two, SURVIVED), "1b1b1b1b")
    whole = page.read_text(encoding="utf-8")
    assert f"1 of {len(MUTANTS)} are found; {len(MUTANTS) - 2} were not run." in whole
    assert [line.split(" | ")[4:6] for line in whole.splitlines() if "0a0a0a0a" in line or "1b1b1b1b" in line] == [
        [FOUND, "0a0a0a0a"],
        [SURVIVED, "1b1b1b1b"],
    ]
    write(page, Outcome(one, NOT_RUN), "fed")
    assert page.read_text(encoding="utf-8") == whole


def test_the_committed_page_has_a_row_of_every_mutant_as_the_script_writes_it(repository: Path) -> None:
    page = (repository / "docs" / "mutations.md").read_text(encoding="utf-8")
    assert page_of([Outcome(one, NOT_RUN) for one in MUTANTS], "", page) == page


def test_a_run_of_no_row_fails() -> None:
    assert main(["--only", "a module that nobody has"]) == 1
