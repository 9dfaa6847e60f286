"""Our side of EasyR1's driver over a trainer that stands in for its own: which completions every call of the update
has, what generation and scoring get, and what a checkpoint says.

The stand-in is written from what EasyR1's loop does: batches until a rollout is full, answers prompt by prompt in whole
groups, one call each of generation, scoring and the update. EasyR1's own loop is run where a checkout is.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Mode
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.carried_rows import told_by_batch
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, SEED, STEP
from batchbridge.kit.patches import Patches
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.workers import Receipt, orders_of
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.reading.read import read
from batchbridge_easyr1 import trainer as module
from batchbridge_easyr1.inputs import CARRIED, PRODUCER

VERSION, PROMPTS, GROUP, RANKS, WIDTH = "0.3.3.dev0", 12, 4, 2, 6
COMMAND = [
    *("python3", "-m", "verl.trainer.main", "data.rollout_batch_size=6", f"worker.rollout.n={GROUP}"),
    *("worker.actor.global_batch_size=3", "worker.actor.micro_batch_size_per_device_for_update=2"),
    *("worker.actor.dynamic_batching=false", "worker.actor.micro_batch_size_per_device_for_experience=2"),
    *(f"trainer.n_gpus_per_node={RANKS}", "trainer.max_steps=3", "worker.rollout.tensor_parallel_size=1"),
    *("algorithm.disable_kl=true", "data.mini_rollout_batch_size=3"),
]


class Batch:
    """A stand-in for verl's `DataProto`, as far as a driver reads one."""

    def __init__(
        self,
        batch: Mapping[str, Any] | None = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> None:
        self.batch, self.non_tensor_batch = dict(batch or {}), dict(non_tensor_batch or {})
        self.meta_info = dict(meta_info or {})

    def __len__(self) -> int:
        return len(next(iter({**self.batch, **self.non_tensor_batch}.values())))

    def __getitem__(self, rows: Sequence[int]) -> Batch:
        chosen = list(rows)
        return Batch(
            {name: value[chosen].clone() for name, value in self.batch.items()},
            {name: value[chosen].copy() for name, value in self.non_tensor_batch.items()},
            self.meta_info,
        )


def pad(batch: Batch, divisor: int) -> tuple[Batch, int]:
    """verl's `pad_dataproto_to_divisor`: first rows again, until ranks get equally many."""
    extra = -len(batch) % divisor
    return batch[[*range(len(batch)), *range(extra)]], extra


class Group:
    """A worker group: what it was asked for."""

    world_size = RANKS
    workers = ()

    def __init__(self) -> None:
        self.generated: list[Batch] = []
        self.scored: list[Batch] = []
        self.updates: list[Batch] = []

    def generate_sequences(self, prompts: Batch) -> Batch:
        assert len(prompts) % RANKS == 0, "each rank gets equally many"
        self.generated.append(prompts)
        rows = [row for row in range(len(prompts)) for _ in range(GROUP)]
        return Batch({"answers_to": torch.tensor([prompts.batch["text"][row] for row in rows])})

    def compute_log_probs(self, batch: Batch) -> Batch:
        assert len(batch) % (2 * RANKS) == 0, "whole micro-batches on every rank"
        self.scored.append(batch)
        return Batch({"old_log_probs": batch.batch["number"].float()})

    compute_ref_log_probs = compute_log_probs

    def update_actor(self, batch: Batch) -> Batch:
        assert len(batch) % (2 * RANKS) == 0, "whole micro-batches on every rank"
        self.updates.append(batch)
        return Batch(non_tensor_batch={"actor/loss": np.array([float(batch.meta_info.get(STEP, 0))])})


class Loader:
    """The native data loader: of its dataset and its collator alone ours makes use."""

    dataset = tuple({"text": number} for number in range(PROMPTS))

    @staticmethod
    def collate_fn(items: list[Any]) -> dict[str, Any]:
        return {"text": torch.tensor([item["text"] for item in items])}

    def __iter__(self) -> Any:
        raise AssertionError("the plan's prompts are trained, not the sampler's")


class ObservedLoader(Loader):
    """The native loader, which reads its dataset in order."""

    size = 4

    def __init__(self) -> None:
        self.dataset = Loader.dataset

    def __iter__(self) -> Any:
        for start in range(0, PROMPTS, self.size):
            items = [self.dataset[index] for index in range(start, start + self.size)]
            numbers = [item.get(PROMPT) for item in items]
            yield {**self.collate_fn(items), PROMPT: np.array(numbers, dtype=object)}


class StockLoader(ObservedLoader):
    """The same, two prompts at once."""

    size = 2


class Trainer:
    """As much of EasyR1's `RayPPOTrainer` as is patched.

    filtered: the groups of every third prompt are thrown away. lost: a group of a rollout goes. mixed: two groups
    exchange a row.
    """

    def __init__(self, folder: Path, *, filtered: bool = False) -> None:
        actor = SimpleNamespace(
            ulysses_size=1,
            dynamic_batching=False,
            padding_free=False,
            micro_batch_size_per_device_for_update=2,
            micro_batch_size_per_device_for_experience=2,
        )
        self.config = SimpleNamespace(
            worker=SimpleNamespace(actor=actor, rollout=SimpleNamespace(n=GROUP, temperature=1.0)),
            algorithm=SimpleNamespace(adv_estimator="grpo", kl_type="fixed"),
            data=SimpleNamespace(rollout_batch_size=6, mini_rollout_batch_size=3),
            trainer=SimpleNamespace(
                save_checkpoint_path=str(folder), load_checkpoint_path=None, find_last_checkpoint=False
            ),
        )
        self.train_dataloader, self.training_steps, self.global_step = Loader(), 99, 0
        self.filtered, self.lost, self.mixed = filtered, False, False
        self.group = Group()
        self.kl_ctrl = SimpleNamespace(kl_coef=0.0)
        self.between: Callable[[Batch], None] = lambda batch: None
        self.calls: list[str] = []

    def init_workers(self) -> None:
        self.actor_rollout_ref_wg = self.group

    def _make_batch_data(self, metrics: dict[str, Any]) -> Batch:
        kept: list[Batch] = []
        while sum(map(len, kept)) < self.config.data.rollout_batch_size * GROUP:
            columns = next(self.iterator)
            prompts = Batch(
                {"text": columns["text"]}, {name: value for name, value in columns.items() if name != "text"}
            )
            answers = self.actor_rollout_ref_wg.generate_sequences(Batch({"text": columns["text"]}))
            rows = [row for row in range(len(prompts)) for _ in range(GROUP)]
            new = prompts[rows]
            assert answers.batch["answers_to"].tolist() == new.batch["text"].tolist()
            if self.filtered:  # a group without a variance: that of every third prompt
                new = new[[row for row in range(len(new)) if new.batch["text"][row] % 3]]
            kept.append(new)
        rows_of = {name: np.concatenate([one.non_tensor_batch[name] for one in kept]) for name in new.non_tensor_batch}
        whole = Batch({"text": torch.cat([one.batch["text"] for one in kept])}, rows_of)
        whole = whole[range(self.config.data.rollout_batch_size * GROUP)]
        lengths = torch.tensor([1 + (3 * row + int(whole.batch["text"][row])) % WIDTH for row in range(len(whole))])
        whole.batch["response_mask"] = (torch.arange(WIDTH)[None] < lengths[:, None]).long()
        whole.batch["attention_mask"] = torch.cat([torch.ones(len(whole), 2).long(), whole.batch["response_mask"]], 1)
        whole.batch["number"] = torch.arange(len(whole))
        rewards = (torch.arange(len(whole)) * 7 % 5).float()
        whole.batch["token_level_rewards"] = torch.nn.functional.pad(rewards[:, None], (0, WIDTH - 1))
        whole.batch["responses"] = whole.batch["response_mask"].clone()
        whole.batch["input_ids"] = whole.batch["attention_mask"] * torch.arange(len(whole))[:, None]
        names = [f"{row // GROUP}" for row in range(len(whole))]
        whole.non_tensor_batch["uid"] = np.array(names, dtype=object)
        if self.lost:
            return whole[range(len(whole) - GROUP)]
        return whole[[GROUP, *range(1, GROUP), 0, *range(GROUP + 1, len(whole))]] if self.mixed else whole

    def _balance_batch(self, batch: Batch, metrics: dict[str, Any]) -> None:
        raise AssertionError("rows are placed by the step that trains them")

    def _save_checkpoint(self) -> None:
        self.calls.append(f"saved {self.global_step}")

    def _load_checkpoint(self) -> None:
        self.calls.append("loaded")

    def fit(self, *, rollouts: int | None = None) -> list[Batch]:
        """The loop. Returns each rollout's metrics."""
        found = []
        self._load_checkpoint()
        self.iterator = iter(self.train_dataloader)
        while self.global_step < min(rollouts or 99, self.training_steps):
            self.global_step += 1
            batch = self._make_batch_data({})
            self._balance_batch(batch, {})
            scored = self.actor_rollout_ref_wg.compute_log_probs(batch)
            assert scored.batch["old_log_probs"].tolist() == batch.batch["number"].tolist(), "each row's own value"
            batch.batch["old_log_probs"] = -scored.batch["old_log_probs"][:, None].expand(-1, WIDTH).clone()
            batch = sys.modules[PRODUCER].compute_advantage(batch)  # type: ignore[attr-defined]  # a stand-in
            self.between(batch)
            found.append(self.actor_rollout_ref_wg.update_actor(batch))
            self._save_checkpoint()
        return found


def compute_advantage(batch: Batch) -> Batch:
    """GRPO's, as EasyR1 computes them."""
    rewards = batch.batch["token_level_rewards"].sum(-1).reshape(-1, GROUP)
    values = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)
    batch.batch["advantages"] = values.reshape(-1, 1) * batch.batch["response_mask"]
    return batch


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = types.ModuleType("verl.protocol")
    vars(protocol).update(
        DataProto=Batch,
        pad_dataproto_to_divisor=pad,
        unpad_dataproto=lambda batch, extra: batch[range(len(batch) - extra)],
    )
    checkpoint = types.ModuleType("verl.utils.checkpoint")
    vars(checkpoint).update(find_latest_ckpt=lambda folder: (None, None))  # nothing was saved before
    producer = types.ModuleType(PRODUCER)
    vars(producer).update(compute_advantage=compute_advantage)
    for stand_in in (types.ModuleType("verl"), producer, protocol, types.ModuleType("verl.utils"), checkpoint):
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)

    def receipts(group: Any, orders: Any, patches: Patches) -> list[Receipt]:
        return [Receipt(rank, RANKS, orders.spec.digest()) for rank in range(group.world_size)]

    monkeypatch.setattr(module, "install_everywhere", receipts)


def request_of(*more: str) -> Request:
    reading = read([*COMMAND, *more], version=VERSION, dataset_size=PROMPTS)
    assert reading.spec is not None, reading.findings
    return Request(spec=reading.spec, plan=plan_of(reading.spec, PROMPTS), reading=reading, mode="enforce")


def wrapped(trainer: Trainer, request: Request) -> Patches:
    patches = Patches()
    driver = module.EasyR1Driver(trainer, request, orders_of(request, VERSION))
    module.EasyR1PlanPatches(trainer, driver, patches)
    trainer.init_workers()
    return patches


def held(trainer: Trainer, mode: Mode, **more: Any) -> None:
    """Wraps the stand-in in a mode that holds its inputs."""
    request = dataclasses.replace(request_of(), mode=mode, **more)
    if mode == "enforce":
        wrapped(trainer, request)
        return
    trainer.train_dataloader = StockLoader()
    module.EasyR1Observer(trainer, request, orders_of(request, VERSION), Patches())
    trainer.init_workers()
    trainer._balance_batch = lambda *given: None  # type: ignore[method-assign]  # of a stock run


def members(batch: Batch) -> list[tuple[int, int, int]]:
    """The rows that are trained, fillers left out."""
    columns = batch.non_tensor_batch
    rows = zip(columns[ROLLOUT], columns[PROMPT], columns[SAMPLE], columns[POSITION], strict=True)
    return [(int(rollout), int(prompt), int(sample)) for rollout, prompt, sample, position in rows if position >= 0]


def test_every_call_of_the_update_has_a_planned_steps_completions_and_advantages(tmp_path: Path) -> None:
    trainer, request = Trainer(tmp_path), request_of()
    plan = request.plan
    assert plan is not None
    wrapped(trainer, request)
    metrics = trainer.fit()
    updates = trainer.group.updates
    assert [batch.meta_info[STEP] for batch in updates] == list(range(plan.total_optimizer_steps))
    for batch, step in zip(updates, plan.steps(), strict=True):
        wanted = [(one.rollout, one.prompt, one.sample) for one in step.members]
        assert Counter(members(batch)) == Counter(wanted)
        fillers = [row for row, position in enumerate(batch.non_tensor_batch[POSITION]) if position < 0]
        assert not batch.batch["response_mask"][fillers].any()
        assert not batch.batch["advantages"][fillers].any()
        assert batch.meta_info["global_token_num"] == batch.batch["attention_mask"].sum(-1).tolist()
    first = [batch for batch in updates if batch.non_tensor_batch[ROLLOUT][0] == 0]
    values = {
        (int(one.non_tensor_batch[POSITION][row]), int(one.batch["number"][row])): one.batch["advantages"][row, 0]
        for one in first
        for row in range(len(one))
        if one.non_tensor_batch[POSITION][row] >= 0
    }
    for position in range(6):
        group = [(number * 7 % 5, float(value)) for (place, number), value in values.items() if place == position]
        rewards = torch.tensor([float(reward) for reward, _ in group])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        assert [value for _, value in group] == pytest.approx(expected.tolist(), rel=1e-4)
    assert trainer.training_steps == len(metrics) == plan.total_rollouts
    assert [list(one.non_tensor_batch["actor/loss"]) for one in metrics] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_every_call_of_the_update_has_the_digests_of_what_its_rows_carry(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    wrapped(trainer, request_of())
    trainer.fit(rollouts=1)
    for batch in trainer.group.updates:
        marks = [batch.non_tensor_batch[name] for name in (POSITION, SAMPLE)]
        found = {row: told for row, told in told_by_batch(batch.batch, CARRIED, *marks).items() if row[0] >= 0}
        assert found == batch.meta_info[ROW_DIGESTS]
        assert {name for told in found.values() for name in told} == {*CARRIED} - {"ref_log_probs"}


def touched(batch: Batch, name: str) -> None:
    batch.batch[name][3] *= 2


def in_the_second(trainer: Trainer, change: Callable[[Batch], None]) -> None:
    trainer.between = lambda batch: change(batch) if trainer.global_step == 2 else None


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("name", ["advantages", "old_log_probs", "response_mask", "input_ids"])
def test_a_column_that_changes_before_it_is_sent_ends_the_run(tmp_path: Path, mode: Mode, name: str) -> None:
    trainer = Trainer(tmp_path)
    held(trainer, mode)
    in_the_second(trainer, lambda batch: touched(batch, name))
    said = f"optimizer step 2 departs from the plan in its inputs: {name} of the rollout's prompt 0 sample 3 is not"
    with pytest.raises(BatchDrift, match=said):
        trainer.fit(rollouts=2)


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_rows_that_exchange_their_advantages_end_the_run(tmp_path: Path, mode: Mode) -> None:
    def exchange(batch: Batch) -> None:
        batch.batch["advantages"][[0, 1]] = batch.batch["advantages"][[1, 0]]

    trainer = Trainer(tmp_path)
    held(trainer, mode)
    in_the_second(trainer, exchange)
    with pytest.raises(BatchDrift, match=r"advantages of the rollout's prompt 0 sample . is not"):
        trainer.fit(rollouts=2)


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_advantages_that_rewards_do_not_give_end_the_run(tmp_path: Path, mode: Mode) -> None:
    def larger(batch: Batch) -> Batch:
        made = compute_advantage(batch)
        made.batch["advantages"] *= 1.05
        return made

    native, trainer = Trainer(tmp_path / "native"), Trainer(tmp_path)
    held(native, mode)
    native.fit(rollouts=1)
    vars(sys.modules[PRODUCER])["compute_advantage"] = larger
    held(trainer, mode)
    with pytest.raises(BatchDrift, match="optimizer step 0 departs from the plan in its advantages: completion 0 of"):
        trainer.fit(rollouts=1)
    own = Trainer(tmp_path / "own")
    held(own, mode, allow=frozenset({"advantages"}))
    own.fit(rollouts=1)
    pairs = zip(own.group.updates, native.group.updates, strict=True)
    for mine, theirs in [(one.batch["advantages"], other.batch["advantages"]) for one, other in pairs]:
        assert theirs.any()
        torch.testing.assert_close(mine, 1.05 * theirs)


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_a_setting_of_the_producers_that_changes_ends_the_run_before_its_rollout(tmp_path: Path, mode: Mode) -> None:
    trainer = Trainer(tmp_path)
    held(trainer, mode)
    trainer.fit(rollouts=1)
    trainer.config.worker.rollout.temperature = 1.3
    generated = len(trainer.group.generated)
    trainer._load_checkpoint = lambda: None  # type: ignore[method-assign]  # the second part of the same loop
    with pytest.raises(BatchDrift, match=r"in its settings: worker.rollout.temperature was 1.0 .* and is 1.3"):
        trainer.fit(rollouts=2)
    assert len(trainer.group.generated) == generated


def test_generation_has_each_prompts_own_seed_and_equally_many_prompts_a_rank(tmp_path: Path) -> None:
    trainer, request = Trainer(tmp_path), request_of()
    plan = request.plan
    assert plan is not None
    wrapped(trainer, request)
    trainer.fit(rollouts=1)
    seeds = plan.sampling_seeds(0)
    asked = [(one.batch["text"].tolist(), list(one.non_tensor_batch[SEED])) for one in trainer.group.generated]
    prompts = list(plan.rollout(0).prompts)
    halves = [(prompts[at : at + 3], list(seeds[at : at + 3])) for at in (0, 3)]
    # Three prompts on two ranks: the first is generated again, and its answers go.
    assert asked == [([*texts, texts[0]], [*own, own[0]]) for texts, own in halves]


@pytest.mark.parametrize("change", ["lost", "mixed"])
def test_a_rollout_that_is_not_the_plans_ends_the_run_before_an_update(tmp_path: Path, change: str) -> None:
    trainer = Trainer(tmp_path)
    setattr(trainer, change, True)
    wrapped(trainer, request_of())
    error, said = (BatchDrift, "nothing stands in for a missing one") if change == "lost" else (CannotAttach, "groups")
    with pytest.raises(error, match=said):
        trainer.fit()
    assert trainer.group.updates == []


def test_a_rollout_without_a_workers_receipt_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "install_everywhere", lambda *given: [])
    trainer = Trainer(tmp_path)
    wrapped(trainer, request_of())
    with pytest.raises(CannotAttach, match="no training worker has its orders"):
        trainer.fit()


def test_the_candidates_that_are_kept_fill_a_rollout_and_the_next_begins_behind_the_last_of_them(
    tmp_path: Path,
) -> None:
    request = request_of("algorithm.online_filtering=true")
    trainer, plan = Trainer(tmp_path, filtered=True), request.plan
    assert isinstance(plan, CandidatePlan)
    wrapped(trainer, request)
    trainer.fit()
    offered = plan.candidates(0, 60)
    kept = [prompt for prompt in offered if prompt % 3]
    by_rollout: dict[int, list[int]] = {}
    for batch in trainer.group.updates:
        for rollout, prompt, _ in members(batch):
            by_rollout.setdefault(rollout, []).append(prompt)
    for rollout, trained in sorted(by_rollout.items()):
        assert Counter(trained) == Counter(kept[6 * rollout : 6 * rollout + 6] * GROUP), rollout
    assert sorted(by_rollout) == [0, 1, 2]
    folder = tmp_path / "global_step_3"
    saved = next(json.loads(file.read_text()) for file in folder.iterdir() if file.suffix == ".json")
    last = [place for place, prompt in enumerate(offered) if prompt % 3][17]
    assert saved["next_candidate"] == last + 1


def test_a_run_goes_on_at_the_place_that_was_saved_before_its_checkpoint(tmp_path: Path) -> None:
    whole, first = Trainer(tmp_path / "whole"), Trainer(tmp_path / "first")
    for trainer in (whole, first):
        wrapped(trainer, request_of())
    whole.fit()
    first.fit(rollouts=1)
    assert first.calls == ["loaded", "saved 1"]
    second = Trainer(tmp_path / "second")
    second.config.trainer.load_checkpoint_path = str(tmp_path / "first" / "global_step_1")
    second.global_step = 1
    wrapped(second, request_of())
    second.fit()
    assert [members(batch) for batch in [*first.group.updates, *second.group.updates]] == [
        members(batch) for batch in whole.group.updates
    ]
    third = Trainer(tmp_path / "third")
    third.config.trainer.load_checkpoint_path = second.config.trainer.load_checkpoint_path
    wrapped(third, request_of("worker.actor.global_batch_size=6"))
    with pytest.raises(CannotAttach):
        third.fit()
    assert (third.calls, third.group.updates) == ([], [])


def test_unwrapped_everything_is_the_trainers_own_again(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    before = vars(trainer).copy()
    patches = wrapped(trainer, request_of())
    patches.undo()
    del trainer.actor_rollout_ref_wg
    assert vars(trainer) == before
    assert set(vars(trainer.group)) == {"generated", "scored", "updates"}


def test_an_observed_run_keeps_its_loop_and_every_row_says_which_completion_it_is(tmp_path: Path) -> None:
    trainer, request, patches = Trainer(tmp_path), request_of(), Patches()
    loader = trainer.train_dataloader = ObservedLoader()
    observer = module.EasyR1Observer(trainer, request, orders_of(request, VERSION), patches)
    trainer.init_workers()
    trainer.global_step, trainer.iterator = 2, iter(loader)
    columns = trainer._make_batch_data({}).non_tensor_batch
    assert list(columns[PROMPT]) == [prompt for prompt in range(6) for _ in range(GROUP)]
    assert list(columns[SAMPLE]) == list(range(GROUP)) * 6
    assert list(columns[POSITION]) == list(columns[PROMPT])
    assert set(columns[ROLLOUT]) == {1}
    patches.undo()
    observer.detach()
    assert loader.dataset is Loader.dataset
