"""`diff` names the first optimizer step that differs, and in what; and finds nothing where nothing differs."""

from __future__ import annotations

import json
import random

import pytest

from batchbridge.errors import LedgerError
from batchbridge.ledger import diff, read_steps
from batchbridge.ledger.comparing import applied_weights
from batchbridge.ledger.reading import Ledger
from batchbridge.meaning.prompt_digest import digest_of
from batchbridge.meaning.spec import LossTerm
from batchbridge.meaning.weights import Normaliser, Row, token_weights


def change(step_number, **fields):
    """An edit of one step: `row__field=value` changes the third completion, other names are scalars."""

    def edit(step, rows, scalars):
        if step == step_number:
            for name, value in fields.items():
                if name.startswith("row__"):
                    rows[2][name.removeprefix("row__")] = value
                else:
                    scalars[name] = value

    return edit


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_same_run_on_other_ranks_is_equal(ledger, world_size):
    result = diff(ledger("a"), ledger("b", world_size=world_size))
    assert (result.equal, result.steps_compared, result.step) == (True, 4, None)


def test_the_same_run_in_two_frameworks_is_equal(ledger):
    assert diff(ledger("a"), ledger("b", framework="verl", framework_version="0.9.1", world_size=2)).equal


def test_the_order_of_completions_inside_a_step_means_nothing(ledger):
    def shuffle(step, rows, scalars):
        random.Random(step).shuffle(rows)

    assert diff(ledger("a", world_size=2), ledger("b", edit=shuffle)).equal


DIFFERENCES = {
    "clock: learning rate": (change(2, learning_rate=2e-3), "clock", "learning_rate 0.001 and 0.002"),
    "clock: skipped": (change(2, skipped=True), "clock", "skipped False and True"),
    "clock: tick": (change(2, lr_tick=False), "clock", "lr_tick True and False"),
    "membership": (change(2, row__sample=1, row__prompt=4), "membership", "(rollout 2, pass 0, prompt 4, sample 1)"),
    "membership: pass": (change(2, row__pass_index=1), "membership", "pass 1"),
    "order": (change(2, row__prompt=7), "order", "only in a: none, only in b: [7]"),
    "order: generated later": (change(2, row__generated_at_step=1), "order", "generated_at_step of 1 of 4"),
    "content": (change(2, row__completion_fingerprint="0" * 16), "content", "completion_fingerprint of 1 of 4"),
    "content: prompt": (change(2, row__prompt_fingerprint="0" * 16), "content", "prompt_fingerprint of 1 of 4"),
    "content: tokens": (change(2, row__response_tokens=9), "content", "response_tokens of 1 of 4 completions: 2 and 9"),
    "weights": (change(2, row__weights=0.2), "weights", "weight of 1 of 4 completions: 0.1 and 0.2"),
    "weights: normaliser": (
        change(2, normaliser=Normaliser(aggregation="token_mean", completions=4, tokens=11)), "weights", "T = 11",
    ),
    "advantage": (change(2, row__advantage=0.4), "advantage", "advantage of 1 of 4 completions: -0.5 and 0.4"),
}  # fmt: skip


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("edit", "aspect", "detail"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_named_by_its_first_step_and_aspect(ledger, edit, aspect, detail, world_size):
    result = diff(ledger("a"), ledger("b", world_size=world_size, edit=edit))
    assert (result.step, result.aspect, detail in (result.detail or "")) == (2, aspect, True)


@pytest.mark.parametrize(("edit", "aspect", "detail"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_found_from_both_sides(ledger, edit, aspect, detail):
    result = diff(ledger("b", edit=edit), ledger("a"))
    assert (result.step, result.aspect) == (2, aspect)


NOISE = {
    "advantage": change(2, row__advantage=-0.5 * (1 + 1e-9)),
    "advantage near zero": change(2, row__advantage=-0.5 + 1e-9),
    "weights": change(2, row__weights=0.1 * (1 + 1e-9)),
    "learning rate": change(2, learning_rate=1e-3 * (1 + 1e-9)),
    "old log-probabilities": change(2, row__old_logprobs="0" * 16),
    "gradient norm": change(2, gradient_norm=0.6),
    "reward that leaves the advantage": change(2, row__reward=9.0),
    "epoch": change(2, epoch=1),
}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("edit", NOISE.values(), ids=NOISE)
def test_float_noise_and_what_no_other_framework_can_reproduce_is_equal(ledger, edit, world_size):
    assert diff(ledger("a"), ledger("b", edit=edit, world_size=world_size)).equal


@pytest.mark.parametrize("name", [name for name in NOISE if name != "epoch"])
def test_exact_sees_what_the_tolerance_forgives(ledger, name):
    result = diff(ledger("a"), ledger("b", edit=NOISE[name]), exact=True)
    assert (result.equal, result.step) == (False, 2)


def test_what_is_not_compared_is_said(ledger):
    assert set(diff(ledger("a"), ledger("b")).not_compared) == {"old_logprobs", "gradient_norm", "reward"}


def test_an_unknown_learning_rate_is_said_and_not_compared(ledger):
    result = diff(ledger("a"), ledger("b", edit=change(2, learning_rate=None)))
    assert (result.equal, "learning_rate" in result.not_compared) == (True, True)


def test_weights_that_differ_on_a_completion_without_tokens_mean_nothing(ledger):
    def edit(step, rows, scalars):
        rows[1]["weights"] = 123.0

    assert diff(ledger("a"), ledger("b", edit=edit)).equal


def test_a_completion_that_has_tokens_in_one_run_alone_differs_in_content_from_both_sides(ledger):
    """Its weight is nothing of its own: no token has it in the other run."""

    def edit(step, rows, scalars):
        if step == 2:
            rows[1] |= {"response_tokens": 1, "weights": 1.0}

    a, b = ledger("a"), ledger("b", edit=edit)
    for one, other in ((a, b), (b, a)):
        result = diff(one, other)
        assert (result.step, result.aspect, result.also) == (2, "content", {})


def test_a_column_of_weights_equals_the_normaliser_that_gives_them(ledger):
    def edit(step, rows, scalars):
        scalars["weights"] = None

    assert diff(ledger("a"), ledger("b", edit=edit)).equal


def test_a_column_of_weights_differs_from_a_normaliser_that_gives_others(ledger):
    def edit(step, rows, scalars):
        scalars |= {"weights": None, "normaliser": Normaliser(aggregation="token_mean", completions=4, tokens=20)}

    assert diff(ledger("a"), ledger("b", edit=edit)).aspect == "weights"


@pytest.mark.parametrize(
    "aggregation",
    ["token_mean", "sequence_mean", "sequence_sum", "sequence_sum_over_constant", "token_sum", "prompt_mean"],
)
def test_weights_from_a_normaliser_are_those_of_the_schema(ledger, aggregation):
    term = LossTerm(aggregation=aggregation, constant=7 if aggregation.endswith("constant") else None)

    def edit(step, rows, scalars):
        members = [Row(tokens=row["response_tokens"], group=(row["rollout"], row["prompt"])) for row in rows]
        scalars |= {"weights": None, "normaliser": Normaliser.of(term, members)}

    step = next(iter(read_steps(ledger("a", edit=edit))))
    rows = zip(step["response_tokens"], step["rollout"], step["prompt"], strict=True)
    members = [Row(tokens=tokens, group=(rollout, prompt)) for tokens, rollout, prompt in rows]
    assert applied_weights(step) == pytest.approx([float(w) for w in token_weights(term, members)], rel=1e-15)


def test_a_shorter_horizon_differs_in_the_clock_at_the_first_step_that_only_one_has(ledger):
    result = diff(ledger("a", steps=3), ledger("b", steps=4))
    assert (result.step, result.aspect, result.detail) == (3, "clock", "run a ends before this step")


def test_a_killed_run_says_why_it_ends(ledger):
    folder = ledger("b", world_size=2)
    path = folder / "rank-00001.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    result = diff(ledger("a"), folder)
    assert (result.step, result.aspect) == (3, "clock")
    assert "step 3 is recorded by rank 0 only" in (result.detail or "")


def test_the_earliest_step_and_all_of_its_aspects_are_reported(ledger):
    def edit(step, rows, scalars):
        if step >= 1:
            rows[0]["advantage"] = 0.1
            scalars["learning_rate"] = 5.0

    result = diff(ledger("a"), ledger("b", edit=edit))
    assert (result.step, result.aspect, list(result.also), result.steps_compared) == (1, "advantage", ["clock"], 1)


def test_a_completion_trained_twice_in_a_step_is_membership(ledger):
    def twice(step, rows, scalars):
        if step == 1:
            rows[1] = dict(rows[0])

    result = diff(ledger("a"), ledger("b", edit=twice))
    assert (result.step, result.aspect) == (1, "membership")


def test_two_runs_that_both_train_a_completion_twice_are_equal_on_any_ranks(ledger):
    def twice(step, rows, scalars):
        rows[1] = dict(rows[0])

    assert diff(ledger("a", edit=twice), ledger("b", edit=twice, world_size=2)).equal


def test_another_split_of_one_rollout_is_membership_not_order(ledger):
    """Both runs draw rollout 0's two prompts in steps 0 and 1; the second swaps the steps' prompts."""

    def split(first_prompts):
        def edit(step, rows, scalars):
            prompt = first_prompts[step % 2] + 2 * (step // 2)
            for row in rows:
                row |= {"rollout": step // 2, "prompt": prompt, "generated_at_step": step // 2 * 2}
            for sample, row in enumerate(rows):
                row["sample"] = sample

        return edit

    result = diff(ledger("a", edit=split([0, 1])), ledger("b", edit=split([1, 0])))
    assert (result.step, result.aspect) == (0, "membership")


def test_a_run_before_and_after_a_resume_is_compared_by_what_it_did_last(ledger):
    whole = ledger("whole", steps=4)
    resumed = ledger("resumed", steps=3)
    ledger("resumed", at_step=1, steps=4, started="resumed")
    assert diff(whole, resumed, exact=True).to_dict()["equal"]


def test_a_resume_that_went_wrong_is_found(ledger):
    resumed = ledger("resumed", steps=2)
    ledger("resumed", at_step=2, steps=4, started="resumed", edit=change(3, row__prompt=0))
    result = diff(ledger("whole"), resumed)
    assert (result.step, result.aspect) == (3, "order")


def test_a_ledger_that_begins_with_a_resume_is_compared_from_there(ledger):
    result = diff(ledger("whole"), ledger("tail", at_step=2, steps=4, started="resumed"))
    assert (result.equal, result.steps_compared) == (True, 2)
    assert "a begins at step 0, b at step 2: compared from step 2" in result.notes


@pytest.mark.parametrize("edit", [None, *(edit for edit, *_ in DIFFERENCES.values())], ids=["equal", *DIFFERENCES])
def test_lines_that_another_program_spelled_compare_the_same(ledger, edit):
    a, b = ledger("a"), ledger("b", edit=edit)
    expected = diff(a, b)
    path = b / "rank-00000.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(dict(sorted(r.items()))) + "\n" for r in records))
    result = diff(a, b)
    assert (result.step, result.aspect, result.detail) == (expected.step, expected.aspect, expected.detail)


def test_a_damaged_line_is_an_error_not_a_difference(ledger):
    a, b = ledger("a"), ledger("b")
    path = b / "rank-00000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"sample":[0,1', b'"sample":[0,"x"', 1))
    with pytest.raises(LedgerError, match=r"rank-00000\.jsonl:2: column sample"):
        diff(a, b)


def test_the_text_says_what_differs_and_between_whom(ledger):
    text = diff(ledger("a"), ledger("b", framework="verl", edit=change(2, learning_rate=2e-3))).text()
    assert text.splitlines()[:2] == ["different at optimizer step 2: clock", "  learning_rate 0.001 and 0.002"]
    assert [line.split(",")[0] for line in text.splitlines()[3:5]] == ["  a: trl 1.16.0", "  b: verl 1.16.0"]


def test_the_dict_is_json(ledger):
    result = diff(ledger("a"), ledger("b", edit=change(1, row__advantage=9.0))).to_dict()
    assert json.loads(json.dumps(result)) == {**result, "notes": list(result["notes"])}


def test_reading_starts_anywhere(ledger):
    assert [step.step for step in Ledger(ledger("a", world_size=2)).steps(2)] == [2, 3]


def rewritten(folder, number, **fields):
    """The same ledger with other fields in a line (0 is the header) of rank 0; gives the folder."""
    path = folder / "rank-00000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[number] |= fields
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


OTHER_NORMALISERS = [
    {"a": 1},
    {"aggregation": "token_mean"},
    {"aggregation": "token_mean", "completions": 4, "tokens": "10"},
    {"aggregation": "sequence_mean", "completions": 0, "tokens": 10},
    {"aggregation": "sequence_sum_over_constant", "completions": 4, "tokens": 10},
    {"aggregation": "prompt_mean", "completions": 4, "tokens": 10, "prompts": 0},
    {"aggregation": "token_mean", "completions": 4, "tokens": 10**400},
]


@pytest.mark.parametrize("normaliser", OTHER_NORMALISERS)
@pytest.mark.parametrize("weights", [True, False])
def test_a_normaliser_of_another_hand_says_no_weights_and_ends_no_comparison(ledger, normaliser, weights):
    column = {} if weights else {"weights": None}
    b = rewritten(ledger("b"), 2, normaliser=normaliser, **column)
    for one, other in ((ledger("a"), b), (b, ledger("c"))):
        result = diff(one, other)
        assert (result.equal, "weights" in result.not_compared) == (True, not weights)
    changed = rewritten(ledger("d"), 2, normaliser=normaliser, weights=[0.2] * 4)
    assert "not recorded" in diff(changed, ledger("e")).detail


@pytest.mark.parametrize("spec", [None, [1], {"rollout": None}, {"rollout": {"prompts_per_rollout": "x"}}])
def test_a_header_with_a_spec_of_another_hand_ends_no_comparison(ledger, spec):
    def edit(step, rows, scalars):
        if step == 3:  # its rollout's last: the run ends inside of it, for all that anybody knows
            rows[0]["prompt"] = 5

    b = rewritten(ledger("b", edit=edit), 0, spec=spec)
    assert {diff(ledger("a"), b).step, diff(b, ledger("c")).step} == {3}


def test_the_largest_advantage_of_either_run_says_what_noise_is(ledger):
    """Of the completion that has it, one run does not know it."""

    def of(first, third):
        def edit(step, rows, scalars):
            rows[0]["advantage"], rows[2]["advantage"] = first, third

        return edit

    a, b = ledger("a", edit=of(None, 1e-6)), ledger("b", edit=of(1000.0, 2e-6))
    assert [diff(a, b).equal, diff(b, a).equal] == [True, True]


def test_runs_without_a_common_step_are_not_called_equal(ledger):
    whole, later = ledger("a"), ledger("b", at_step=4, steps=4, started="resumed")
    for one, other in ((whole, later), (later, whole), (later, later)):
        with pytest.raises(LedgerError, match="there is nothing to compare"):
            diff(one, other)


def test_data_sets_of_the_same_length_and_other_texts_are_said(ledger):
    texts = [str(number) for number in range(8)]
    one, same, other = (digest_of(prompts) for prompts in (texts, list(texts), texts[::-1]))
    told = "the data sets differ: all 8 prompts: other texts, or the same in another order"
    whole = ledger("whole", prompts=one)
    assert told in diff(whole, ledger("other", prompts=other)).notes
    assert diff(whole, ledger("same", prompts=same)).notes == ()
    assert diff(whole, ledger("older")).notes == ()
    # Another framework keeps the same prompts in another form.
    assert diff(whole, ledger("verl", prompts=other, framework="verl")).notes == ()
