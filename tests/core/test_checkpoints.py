"""A checkpoint's place in the plan: saved whole, compared by meaning."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchbridge.contract.attachment import Attachment, Request
from batchbridge.contract.reading import Provenance, Reading
from batchbridge.errors import CannotAttach, PlanError
from batchbridge.kit import checkpoints
from batchbridge.kit.checkpoints import STATE_FILE, ResumePoint, resume, state
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.prompt_digest import digest_of
from batchbridge.meaning.spec import (
    Carried,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
)

PROMPTS = 12
WHERE = "out/checkpoint-4"


def spec(**fields: Any) -> Spec:
    """6 rollouts of 4 prompts and 2 samples over 2 epochs, 2 optimizer steps each."""
    return Spec(
        topology=Topology(world_size=2),
        rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=4),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        micro_batch=MicroBatch(completions_per_device=2),
        horizon=Horizon(epochs=2.0),
        order=Order(seed=7),
        carried=Carried(learning_rate=1e-6, lr_schedule="linear", max_gradient_norm=1.0),
    ).replace(**fields)


def resumed(
    now: Spec | None = None, *, saved: Any = None, at: int = 4, prompts: int = PROMPTS, ranks: int = 2, **more: Any
) -> ResumePoint:
    """A run of `now` goes on after a checkpoint of `spec()`."""
    written = state(Plan(spec(), PROMPTS), at, ranks=2) if saved is None else saved
    options = {"where": WHERE, "ranks": ranks, "other_ranks": "shards", **more}
    return resume(json.loads(json.dumps(written)), Plan(now or spec(), prompts), **options)


def test_a_state_is_plain_json_and_holds_the_whole_spec(tmp_path: Path) -> None:
    saved = state(Plan(spec(), PROMPTS), 4, ranks=2, rollouts=2)
    checkpoints.write(tmp_path / "new", saved)
    read = checkpoints.read(tmp_path / "new")
    assert read == saved
    assert read is not None
    assert Spec.from_dict(read["spec"]) == spec()
    assert [file.name for file in (tmp_path / "new").iterdir()] == [STATE_FILE]
    assert checkpoints.read(tmp_path) is None


def test_the_same_run_goes_on_without_a_word() -> None:
    place = resumed()
    assert (place.position.optimizer_steps, place.position.next_rollout, place.position.live_rollouts) == (4, 2, ())
    assert (place.ranks, place.changed, place.notes) == (2, (), ())


FREE = {
    "topology.world_size": 4,
    "micro_batch.completions_per_device": 1,
    "micro_batch.tokens_per_device": 4096,
    "micro_batch.cap": "soft",
    "carried.learning_rate": 2e-6,
    "carried.max_gradient_norm": 0.5,
    "carried.precision": "bf16",
    "carried.temperature": 0.7,
    "horizon.epochs": 3.0,
}
DECISIVE = {
    "open_terms": ("advantage: gdpo",),
    "rollout.completions_per_prompt": 4,
    "rollout.prompts_per_rollout": 2,
    "rollout.truncated_completions": "mask",
    "optimizer_step.completions_per_step": 8,
    "optimizer_step.passes_per_rollout": 2,
    "optimizer_step.rollout_shuffle": "groups",
    "loss.policy.aggregation": "sequence_mean",
    "loss.policy.count_empty": False,
    "advantage.scale": "none",
    "advantage.epsilon": 1e-4,
    "order.seed": 8,
    "order.last_rollout": "short",
    "objective.clip_high": 0.28,
    "objective.kl_coefficient": 0.1,
    "horizon.lr_tick": "rollout",
}
CRITIC = Critic(completions_per_step=4, aggregation="token_mean")


@pytest.mark.parametrize("path", FREE)
def test_what_changes_no_step_passes_with_a_note_that_names_it(path: str) -> None:
    place = resumed(spec(**{path: FREE[path]}))
    assert place.changed == (path,)
    was = spec().values[path]
    assert f"{path}: {'open' if was is None else was} in the checkpoint, {FREE[path]} now" in place.notes[0]
    assert WHERE in place.notes[0]


@pytest.mark.parametrize("path", DECISIVE)
def test_what_decides_a_step_is_refused_by_name(path: str) -> None:
    with pytest.raises(CannotAttach, match="belongs to another run; set these back") as caught:
        resumed(spec(**{path: DECISIVE[path], "carried.learning_rate": 1.0}))
    assert set(caught.value.reasons) == {"resume", path}
    assert caught.value.reasons[path].endswith(f" in the checkpoint, {DECISIVE[path]} now")


def test_every_group_of_the_spec_was_thought_of() -> None:
    others = ("staleness.mode", "critic.gamma")
    assert {path.partition(".")[0] for path in (*FREE, *DECISIVE, *others)} == set(Spec.__annotations__)


def test_a_critic_decides_but_for_how_its_steps_are_cut() -> None:
    saved = state(Plan(spec(critic=CRITIC), PROMPTS), 4, ranks=2)
    cut = spec(critic=replace(CRITIC, tokens_per_device=99))
    assert resumed(cut, saved=saved).changed == ("critic.tokens_per_device",)
    for now in (spec(critic=replace(CRITIC, gamma=0.9)), spec()):
        with pytest.raises(CannotAttach) as caught:
            resumed(now, saved=saved)
        assert "critic.gamma" in caught.value.reasons


def test_every_field_that_differs_is_named_with_both_values() -> None:
    with pytest.raises(CannotAttach) as caught:
        resumed(spec(**{"order.seed": 8, "loss.policy.aggregation": "token_sum"}), prompts=16)
    assert caught.value.reasons == {
        "resume": f"{WHERE} belongs to another run; set these back, or start a new run in another folder",
        "order.seed": "7 in the checkpoint, 8 now",
        "loss.policy.aggregation": "token_mean in the checkpoint, token_sum now",
        "dataset_size": "12 prompts in the checkpoint, 16 now",
    }


def test_a_term_of_the_loss_that_one_run_has_not_is_a_difference() -> None:
    with pytest.raises(CannotAttach) as caught:
        resumed(spec(**{"loss.kl": LossTerm(aggregation="sequence_mean")}))
    assert caught.value.reasons["loss.kl.aggregation"] == "open in the checkpoint, sequence_mean now"


def test_the_users_own_words_stand_beside_a_value_that_comes_from_them() -> None:
    now = spec(**{"order.seed": 8, "loss.policy.aggregation": "token_sum", "carried.learning_rate": 2e-6})
    provenance = {
        path: Provenance((key,), value, "argument", "")
        for path, key, value in (
            ("order.seed", "seed", 8),
            ("loss.policy.aggregation", "loss_type", "grpo"),  # the requested spec overrules it
            ("carried.learning_rate", "learning_rate", "2e-6"),
        )
    }
    own = now.replace(**{"loss.policy.aggregation": "sequence_mean"})
    reading = Reading(framework="toy", framework_version="1", spec=own, provenance=provenance, dataset_size=PROMPTS)
    request = Request(spec=now, plan=None, reading=reading, mode="enforce")
    with pytest.raises(CannotAttach) as caught:
        resumed(now, request=request)
    assert caught.value.reasons["order.seed"] == "7 in the checkpoint, 8 now (seed = 8)"
    assert caught.value.reasons["loss.policy.aggregation"] == "token_mean in the checkpoint, token_sum now"
    passes = spec(**{"carried.learning_rate": 2e-6})
    assert "1e-06 in the checkpoint, 2e-06 now (learning_rate = 2e-6)" in resumed(passes, request=request).notes[0]


def test_other_prompts_of_the_same_number_are_refused_unless_they_are_allowed() -> None:
    texts = [str(number) for number in range(PROMPTS)]

    def started(prompts: list[str] | None, *allow: str) -> ResumePoint:
        reading = Reading(framework="toy", framework_version="1", spec=spec(), provenance={}, dataset_size=PROMPTS)
        request = Request(
            spec=spec(),
            plan=None,
            reading=reading,
            mode="enforce",
            allow=frozenset(allow),
            prompts=None if prompts is None else digest_of(prompts),
        )
        return resumed(saved=state(Plan(spec(), PROMPTS), 4, ranks=2, prompts=digest_of(texts)), request=request)

    assert started(texts).notes == started(None).notes == ()  # also where a start does not know its prompts
    with pytest.raises(CannotAttach, match=r'all 12 prompts: other texts, .*allow=\("data",\)') as caught:
        started(texts[::-1])
    assert list(caught.value.reasons) == ["data"]
    (note,) = started(texts[::-1], "data").notes
    assert "on other prompts (all 12 prompts: other texts" in note


@pytest.mark.parametrize("scope", ["micro_batch", "rank"])
@pytest.mark.parametrize("path", ["micro_batch.completions_per_device", "topology.world_size"])
def test_a_split_that_decides_weights_is_refused(scope: str, path: str) -> None:
    own = spec(**{"loss.policy.denominator_scope": scope})
    saved = state(Plan(own, PROMPTS), 4, ranks=2)
    assert resumed(own, saved=saved).changed == ()
    with pytest.raises(CannotAttach, match=f"{path}: "):
        resumed(own.replace(**{path: 1}), saved=saved)


def test_another_number_of_ranks_passes_where_the_framework_can_load_it() -> None:
    fewer = spec(**{"topology.world_size": 1})
    reason = f"{WHERE} was written by 2 ranks, this run has 1: start as many; shards"
    with pytest.raises(CannotAttach, match=re.escape(reason)):
        resumed(fewer, ranks=1)
    place = resumed(fewer, ranks=1, other_ranks=None)
    assert (place.ranks, place.changed) == (2, ("topology.world_size",))


# ---- other lengths


def spans(draw: st.DrawFn) -> tuple[Spec, Spec, int]:
    last_rollout = draw(st.sampled_from(["drop", "short", "wrap"]))
    span = draw(st.sampled_from(["none", "rollout", "run"] + ["epoch"] * (last_rollout != "wrap")))
    first = spec().replace(
        **{
            "rollout.prompts_per_rollout": draw(st.integers(1, 5)),
            "optimizer_step.completions_per_step": draw(st.integers(1, 9)),
            "optimizer_step.passes_per_rollout": draw(st.integers(1, 2)),
            "optimizer_step.step_may_span": span,
            "order.last_rollout": last_rollout,
            "order.last_optimizer_step": draw(st.sampled_from(["drop", "short"])),
            "horizon.lr_tick": draw(st.sampled_from(["rollout", "optimizer_step"])),
        }
    )

    def of_some_length() -> Spec:
        unit = draw(st.sampled_from(["rollouts", "epochs", "optimizer_steps"]))
        return first.replace(**{"horizon.epochs": None, f"horizon.{unit}": draw(st.integers(1, 7))})

    return of_some_length(), of_some_length(), draw(st.integers(1, 11))


@given(st.data())
def test_a_run_of_another_length_goes_on_exactly_where_its_steps_so_far_are_the_same(data: st.DataObject) -> None:
    before, after, prompts = data.draw(st.composite(spans)())
    first, second = Plan(before, prompts), Plan(after, prompts)
    try:
        done = data.draw(st.integers(0, first.total_optimizer_steps))
        same = list(first.steps(0, done)) == list(second.steps(0, done)) and done <= second.total_optimizer_steps
    except PlanError:
        assume(False)
    saved = state(first, done, ranks=2)
    if same:
        assert resumed(after, saved=saved, prompts=prompts, held=range(100)).position == second.seek(done)
    else:
        with pytest.raises(CannotAttach, match=r"earlier checkpoint"):
            resumed(after, saved=saved, prompts=prompts, held=range(100))


def test_a_longer_run_needs_the_rollout_that_the_shorter_one_ended_in() -> None:
    shorter = spec(**{"horizon.epochs": None, "horizon.optimizer_steps": 3})
    saved = state(Plan(shorter, PROMPTS), 3, ranks=2)
    assert resumed(shorter, saved=saved).position.live_rollouts == (1,)  # the run is over: nothing is needed
    reason = "lies inside rollout 1, whose completions it does not hold: it was the last of a shorter run"
    with pytest.raises(CannotAttach, match=reason):
        resumed(saved=saved)
    assert resumed(saved=saved, held=(1,)).position.live_rollouts == (1,)


def test_a_run_that_ends_before_the_checkpoint_is_refused() -> None:
    with pytest.raises(CannotAttach, match="after 8 optimizer steps, and this run ends after 6: make the run longer"):
        resumed(spec(**{"horizon.epochs": 1.0}), at=8)
    assert resumed(spec(**{"horizon.epochs": 1.0}), at=6).changed == ("horizon.epochs",)


def test_a_last_step_that_was_cut_short_is_refused_in_a_longer_run() -> None:
    short = {"optimizer_step.completions_per_step": 5, "optimizer_step.step_may_span": "run"}
    first = spec(**short, **{"horizon.epochs": 1.0})
    plan = Plan(first, PROMPTS)
    assert [len(step.members) for step in plan.steps()] == [5, 5, 5, 5, 4]
    with pytest.raises(CannotAttach, match="the last step of its run, which was cut short there"):
        resumed(spec(**short), saved=state(plan, 5, ranks=2))
    assert resumed(spec(**short), saved=state(plan, 4, ranks=2), held=(2,)).position.live_rollouts == (2,)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"horizon.epochs": 3.0}, True),
        ({"horizon.epochs": 3.0, "carried.lr_schedule": "constant"}, False),
        ({"carried.precision": "bf16"}, False),
    ],
)
def test_a_schedule_that_is_stretched_is_said(fields: dict[str, Any], said: bool) -> None:
    assert any("schedule had the old length until here" in note for note in resumed(spec(**fields)).notes) == said


# ---- files


def test_steps_before_a_rollout_end_with_the_run() -> None:
    plan = Plan(spec(**{"horizon.epochs": None, "horizon.optimizer_steps": 3}), PROMPTS)
    assert [checkpoints.steps_before(plan, rollout) for rollout in range(4)] == [0, 2, 3, 3]


@pytest.mark.parametrize("saved", [{}, {"epoch": 3, "batches": 4}])
def test_a_checkpoint_of_an_unwrapped_run_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises(CannotAttach, match="was written without batchbridge"):
        resumed(saved=saved)
    with pytest.raises(CannotAttach, match="was written without batchbridge"):
        resume(None, Plan(spec(), PROMPTS), where=WHERE, ranks=2, other_ranks=None)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("schema", "batchbridge/checkpoint/2", "this batchbridge reads 'batchbridge/checkpoint/1'"),
        ("spec", {"rollout": {}}, "rollout"),
        ("spec", None, "expected a mapping"),
        ("optimizer_steps", None, "int"),
        ("ranks", "two", "two"),
    ],
)
def test_a_state_that_cannot_be_read_is_refused_with_the_reason(field: str, value: Any, reason: str) -> None:
    saved = state(Plan(spec(), PROMPTS), 4, ranks=2)
    with pytest.raises(CannotAttach, match=f"its saved state cannot be read: .*{reason}"):
        resumed(saved=saved | {field: value})


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(CannotAttach, match="cannot be read: "):
        checkpoints.read(tmp_path)
    for content in ("[]", "{}", '{"step": 3}'):
        (tmp_path / STATE_FILE).write_text(content, encoding="utf-8")
        with pytest.raises(
            CannotAttach, match=r"batchbridge\.json is damaged: it holds no state of a run; resume from"
        ):
            checkpoints.read(tmp_path)


def saved_by_torch(folder: Path, *, share: float = 1.0) -> Path:
    """A checkpoint with a file as torch.save writes them, or its beginning."""
    checkpoints.write(folder, state(Plan(spec(), PROMPTS), 4, ranks=2))
    file = folder / "actor" / "model.pt"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/data/0", bytes(4096))
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    return folder


def test_a_checkpoint_with_a_file_that_is_cut_off_is_refused_and_the_newest_whole_one_named(tmp_path: Path) -> None:
    alone = saved_by_torch(tmp_path / "other" / "step_1", share=0.5)
    with pytest.raises(CannotAttach, match=r"model\.pt is cut off: .* killed; no other checkpoint beside it is whole"):
        checkpoints.check_files(alone)
    for number, share in ((1, 1.0), (2, 1.0), (3, 0.99)):
        folder = saved_by_torch(tmp_path / f"step_{number}", share=share)
        os.utime(folder / STATE_FILE, (number, number))
    with pytest.raises(CannotAttach, match=r"step_3.*model\.pt is cut off: .* the newest whole one is .*step_2$"):
        checkpoints.check_files(tmp_path / "step_3")
    checkpoints.check_files(tmp_path / "step_2")
    (tmp_path / "step_2" / "other.pt").write_bytes(b"no archive")  # nothing is known of its form
    checkpoints.check_files(tmp_path / "step_2")
    checkpoints.check_files(tmp_path / "nothing here")


def first_version(**changes: Any) -> dict[str, Any]:
    """What verl's checkpoints held before the spec was saved."""
    plan = {"optimizer_steps": 4, "spec": spec().digest(), "dataset_size": PROMPTS}
    return {"plan": plan | changes, "ranks": 2, "rollouts": 2}


def test_a_digest_resumes_the_same_settings_and_no_others() -> None:
    place = resumed(saved=first_version())
    assert (place.position.optimizer_steps, place.saved["rollouts"], place.notes) == (4, 2, ())
    with pytest.raises(CannotAttach, match="resume with exactly the settings, batch splits included"):
        resumed(spec(**{"carried.learning_rate": 1.0}), saved=first_version())
    with pytest.raises(CannotAttach, match="dataset_size: 12 prompts in the checkpoint, 16 now"):
        resumed(saved=first_version(), prompts=16)


# ---- what the user is told


def test_notes_are_one_warning_and_lines_of_the_report() -> None:
    class Trainer:
        pass

    trainer = Trainer()
    reading = Reading(framework="toy", framework_version="1", spec=spec(), dataset_size=PROMPTS)
    request = Request(spec=spec(), plan=Plan(spec(), PROMPTS), reading=reading, mode="enforce")
    attachment = Attachment(framework="toy", framework_version="1", request=request, changes=(), detach=lambda: None)
    vars(trainer)["batchbridge"] = attachment
    with pytest.warns(UserWarning, match=r"^batchbridge: one\. two$"):
        checkpoints.tell(trainer, ("one", "two"))
    assert attachment.report().splitlines()[1:] == ["  note: one", "  note: two"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.tell(trainer, ("three",), aloud=False)
        checkpoints.tell(trainer, ())
    assert attachment.notes == ["one", "two", "three"]
    assert replace(attachment, notes=[]).report().count("note") == 0
