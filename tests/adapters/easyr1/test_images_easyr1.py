"""Images: what their adapter does in a worker and in the driver, without EasyR1."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.errors import CannotAttach
from batchbridge.reports import check
from batchbridge_easyr1.images import processed, require
from batchbridge_easyr1.refusals import MODEL, REFUSALS


class Worker:
    """As EasyR1's `FSDPWorker` keeps a call's images. made: for how many rows, whenever it makes them."""

    def __init__(self) -> None:
        self._cache: dict[str, Any] = {}
        self.made: list[int] = []

    def _process_multi_modal_inputs(self, data: Any) -> None:
        if "uid" in self._cache and self._cache["uid"] != data.uids:
            self._cache.clear()
        if "uid" not in self._cache:
            self._cache["uid"] = data.uids
            self.made.append(len(data.uids))


class Rows:
    def __init__(self, *uids: str) -> None:
        self.uids = list(uids)

    def __len__(self) -> int:
        return len(self.uids)


def test_images_are_made_anew_for_another_number_of_rows_and_kept_for_the_same_ones() -> None:
    worker = Worker()
    process = processed(worker)
    for rows in (Rows("a", "b"), Rows("a", "b"), Rows("a"), Rows("a", "b", "b"), Rows("b", "a", "b")):
        process(rows)
    assert worker.made == [2, 1, 3, 3]


IMAGE, VIDEO, NOTHING = {"images": ["a.png"]}, {"videos": ["a.mp4"]}, {"images": []}


@pytest.mark.parametrize(
    ("rows", "ranks", "padding_free", "name"),
    [
        ([IMAGE, NOTHING], 2, True, None),
        ([IMAGE, NOTHING], 2, False, "multi_modal"),
        ([IMAGE, NOTHING], 1, False, None),
        ([IMAGE, IMAGE], 2, False, None),
        ([NOTHING, None], 2, False, None),
        ([VIDEO, VIDEO], 2, False, None),
        ([VIDEO, IMAGE], 2, False, None),
        ([VIDEO, NOTHING], 2, True, None),
        ([VIDEO, NOTHING], 2, False, "multi_modal"),
    ],
)
def test_a_rollout_is_refused_where_its_images_cannot_follow_their_rows(
    rows: list[Any], ranks: int, padding_free: bool, name: str | None
) -> None:
    columns = {"multi_modal_data": rows}
    if name is None:
        require(columns, ranks=ranks, padding_free=padding_free)
        return
    with pytest.raises(CannotAttach) as refusal:
        require(columns, ranks=ranks, padding_free=padding_free)
    assert set(refusal.value.reasons) == {name}


def test_a_rollout_of_text_is_left_alone() -> None:
    require({}, ranks=2, padding_free=False)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", None),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", None),
        ("Qwen/Qwen2-VL-2B-Instruct", None),
        ("Qwen/Qwen2.5-Omni-7B", "multi_modal"),
        ("llava-hf/llava-1.5-7b-hf", "multi_modal"),
    ],
)
def test_a_model_that_reads_images_is_refused_by_its_name_but_for_the_proven_ones(
    model: str, reason: str | None
) -> None:
    command = [*("python3", "-m", "verl.trainer.main", "config=examples/config.yaml"), f"{MODEL}={model}"]
    enforcement = check(command, dataset_size=4096).enforcement
    assert enforcement is not None
    assert [one.name for one in enforcement.obstacles] == ([] if reason is None else [reason])
    proven = model in ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2-VL-2B-Instruct")
    assert ("a data set without videos" in enforcement.assumes) is not proven


@pytest.mark.parametrize(("version", "found"), [("0.3.2", ["multi_modal"]), ("0.3.3.dev0", [])])
def test_images_are_refused_in_the_version_that_scores_rows_without_them_otherwise(
    version: str, found: list[str]
) -> None:
    command = [*("python3", "-m", "verl.trainer.main", "data.rollout_batch_size=64", "worker.rollout.n=8")]
    command += ["worker.actor.global_batch_size=64", "worker.critic.global_batch_size=64"]
    command += [f"{MODEL}=Qwen/Qwen2.5-VL-7B-Instruct"]
    enforcement = check(command, version=version, dataset_size=4096).enforcement
    assert enforcement is not None
    assert [one.name for one in enforcement.obstacles] == found


def test_a_data_set_with_videos_and_without_images_is_refused_for_qwen3_vl_alone() -> None:
    (videos,) = (one for one in REFUSALS if one.name == "videos")

    def trainer(processor: str, *columns: str) -> Any:
        inner = SimpleNamespace(column_names=list(columns))
        dataset = SimpleNamespace(dataset=inner, image_key="images", video_key="videos")
        loader = SimpleNamespace(dataset=dataset)
        return SimpleNamespace(train_dataloader=loader, processor=type(processor, (), {})())

    request: Any = None
    assert videos.against(trainer("Qwen3VLProcessor", "prompt", "videos"), request)
    assert not videos.against(trainer("Qwen3VLProcessor", "prompt", "videos", "images"), request)
    assert not videos.against(trainer("Qwen3VLProcessor", "prompt"), request)
    for proven in ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"):
        assert not videos.against(trainer(proven, "prompt", "videos"), request)
    assert videos.allowable
