"""Records what functions of Open-Instruct itself give, for `test_upstream_values_open_instruct.py`, which replays it
without them.

    PYTHONPATH=CHECKOUT python record.py CHECKOUT > values.json

In Open-Instruct's environment (`nox -s open_instruct`); again whenever a digest in `code` is no more upstream's. Steps
are those of the real learners' own step, whose forward pass gives a tensor and whose optimizer step keeps its gradient:
at ratio 1 and advantage -1 the gradient at a token is its weight.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu

cpu.start()

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from batchbridge_on_cpu.upstream_values import plain, recorded, text_of

COMMIT = "e6c3044aa"
FUNCTIONS = {
    "grpo_fast.py": ("PolicyTrainerRayProcess.step",),
    "olmo_core_train_modules.py": ("GRPOTrainModule.train_batch",),
    "grpo_utils.py": ("calculate_token_counts", "compute_grpo_loss", "compute_rho_correction", "resolve_old_logprob"),
    "model_utils.py": ("estimate_kl",),
    "rl_utils.py": ("masked_mean", "pack_sequences"),
    "data_loader.py": ("HFDataLoader._reshard", "prepare_collated_data_for_workers", "process_group"),
    "vllm_utils.py": ("add_request",),
    "utils.py": ("UlyssesSPSplitter.split_collated_batch",),
}
MICRO_BATCHES = (1, 2, 3, 5, 8)
MINI_BATCHES = (1, 2, 3, 4)
LENGTHS = (3, 1, 4, 2, 6, 5, 2, 7)
"""Response tokens of the one row of each micro-batch."""
PACKED = [
    # pack length, ranks, prompt and response tokens of each completion
    (16, 1, [(2, 5), (2, 3), (3, 4), (3, 8), (2, 2), (4, 9), (2, 1), (2, 6)]),
    (24, 2, [(2, 5), (2, 3), (3, 4), (3, 8), (2, 2), (4, 9), (2, 1), (2, 6)]),
    (8, 3, [(4, 9), (1, 1), (2, 6), (2, 2), (3, 3), (1, 7)]),
]
REWARDS = (
    [0.0, 0.0, 0.0, 0.0],
    [10.0, 10.0, 10.0, 10.0],
    [0.0, 10.0, 10.0, 10.0],
    [2.5, 5.0, 0.0, 1.0],
    [0.1, 0.1, 0.1, 0.1],
)
RATES = (None, 0.25, 0.75, 1.0)
DIFFERENCES = (-50.0, -3.0, -0.5, -0.1, 0.0, 0.1, 0.25, 0.8, 2.0, 50.0)
ORDERS = [(size, batch, seed) for size, batch in ((5, 2), (12, 4)) for seed in (1, 42)]


def data_of(count: int) -> Any:
    """`count` micro-batches of one row each, every response token of advantage -1."""
    from open_instruct.data_types import CollatedBatchData

    masks = [torch.tensor([[False] * 2 + [True] * length + [False]]) for length in LENGTHS[:count]]
    ids = [torch.full(mask.shape, index + 1) for index, mask in enumerate(masks)]
    zeros = [torch.zeros(mask.shape) for mask in masks]
    return CollatedBatchData(ids, ids, ids, [zero - 1 for zero in zeros], masks, zeros)


class Recorded:
    """Stand-ins for a learner's model and optimizer: the steps as micro-batches of [number, weight]."""

    def __init__(self) -> None:
        self.steps: list[list[list[float]]] = []
        self._leaves: list[tuple[int, Any]] = []

    def forward(self, model: Any, ids: Any, *arguments: Any, **options: Any) -> tuple[Any, None]:
        """In place of `grpo_utils.forward_for_logprobs`."""
        leaf = torch.zeros(ids[:, 1:].shape, requires_grad=True)
        self._leaves.append((int(ids[0, 0]) - 1, leaf))
        return leaf, None

    def step(self, *arguments: Any, **options: Any) -> None:
        """In place of the update."""
        parts = []
        for number, leaf in self._leaves:
            (weight,) = leaf.grad[leaf.grad != 0].unique()
            parts.append([number, float(plain(weight))])
        self.steps.append(parts)
        self._leaves.clear()


def arguments_of(mini_batches: int, epochs: int, denominator: str) -> Any:
    from open_instruct.grpo_utils import GRPOLossType

    return SimpleNamespace(
        num_mini_batches=mini_batches,
        num_epochs=epochs,
        loss_denominator=denominator,
        load_ref_policy=False,
        use_vllm_logprobs=True,
        record_entropy=False,
        beta=0.0,
        loss_fn=GRPOLossType.dapo,
        clip_lower=0.2,
        clip_higher=0.2,
        use_rho_correction=False,
        world_size=1,
        sequence_parallel_size=1,
        kl_estimator=2,
    )


def fast(made: Recorded, args: Any, count: int) -> None:
    """One call of grpo_fast.py's own step."""
    from open_instruct import grpo_fast

    kind = grpo_fast.PolicyTrainerRayProcess.__ray_metadata__.modified_class
    model = SimpleNamespace(
        set_gradient_accumulation_boundary=lambda last: None,
        backward=lambda loss: loss.backward(),
        step=made.step,
        get_global_grad_norm=lambda: 0.0,
    )
    learner = SimpleNamespace(
        dataloader=iter([{"batch": data_of(count), "metrics": {}}]),
        splitter=None,
        device=torch.device("cpu"),
        num_mini_batches=args.num_mini_batches,
        args=args,
        rank=1,
        model=model,
        pad_token_id=0,
        ref_policy=None,
        streaming_config=SimpleNamespace(temperature=1.0),
        local_metrics=Metrics(),
        _compute_loss_metrics=lambda *given: None,
    )
    kind.step(learner)


class Metrics(dict):  # type: ignore[type-arg]
    """A stand-in for a learner's metrics."""

    def get_metrics_list(self) -> list[Any]:
        return []


def olmo(made: Recorded, args: Any, count: int) -> None:
    """One call of OLMo-core's train module's own `train_batch`."""
    from open_instruct.olmo_core_train_modules import GRPOTrainModule

    module = SimpleNamespace(
        model=SimpleNamespace(train=lambda: None),
        device=torch.device("cpu"),
        grpo_config=args,
        ref_policy=None,
        pad_token_id=0,
        temperature=1.0,
        rank_microbatch_size=1,
        _do_optim_step=made.step,
        trainer=SimpleNamespace(dp_process_group=None, global_step=0),
        optim=SimpleNamespace(zero_grad=lambda **options: None),
    )
    try:
        GRPOTrainModule.train_batch(module, {"batch": data_of(count)})
    except AttributeError as error:  # what is logged once everything is trained
        if "record_metric" not in str(error):
            raise


def steps() -> list[dict[str, Any]]:
    """The optimizer steps of both learners."""
    from open_instruct import grpo_utils

    found = []
    native = grpo_utils.forward_for_logprobs
    for script, (count, mini) in itertools.product(("fast", "olmo"), itertools.product(MICRO_BATCHES, MINI_BATCHES)):
        for epochs, denominator in ((1, "token"), (2, "24.0")):
            made = Recorded()
            grpo_utils.forward_for_logprobs = made.forward
            try:
                {"fast": fast, "olmo": olmo}[script](made, arguments_of(mini, epochs, denominator), count)
            finally:
                grpo_utils.forward_for_logprobs = native
            found.append(
                {
                    "script": script,
                    "micro_batches": count,
                    "num_mini_batches": mini,
                    "num_epochs": epochs,
                    "loss_denominator": denominator,
                    "lengths": LENGTHS[:count],
                    "steps": made.steps,
                }
            )
    return found


def packs() -> list[dict[str, Any]]:
    """Rows of `pack_sequences`, and each rank's micro-batches of them, as numpy's generator of seed 7 orders them."""
    from open_instruct import data_loader
    from open_instruct.rl_utils import pack_sequences

    found = []
    for pack_length, ranks, sizes in PACKED:
        queries = [[9] * prompt for prompt, _ in sizes]
        answers = [[index + 10] * response for index, (_, response) in enumerate(sizes)]
        made = pack_sequences(
            queries=queries,
            responses=answers,
            masks=[[1] * len(one) for one in answers],
            pack_length=pack_length,
            pad_token_id=0,
            vllm_logprobs=[[-1.0] * len(one) for one in answers],
            min_num_batches=ranks,
        )
        made.advantages = [torch.zeros(len(row)) for row in made.query_responses]
        numbers = [torch.full((len(row),), index + 1) for index, row in enumerate(made.query_responses)]
        made.query_responses, rows = numbers, made.query_responses
        np.random.seed(7)
        shared = data_loader.prepare_collated_data_for_workers(made, ranks, 2, 0, pin_memory=False)
        found.append(
            {
                "pack_length": pack_length,
                "ranks": ranks,
                "sizes": sizes,
                "rows": plain(rows),
                "response_masks": plain(made.response_masks),
                "packed_seq_lens": plain(made.packed_seq_lens),
                "num_actions": plain(made.num_actions),
                "micro_batches": [[(part[:, 0] - 1).tolist() for part in one.query_responses] for one in shared],
            }
        )
    return found


def shards() -> list[dict[str, Any]]:
    """The piece of each row that each of several ranks gets: one micro-batch of a row of 1, 2, 3 ... tokens each."""
    from open_instruct import utils
    from open_instruct.data_types import CollatedBatchData

    from batchbridge.kit.patches import rebound

    def all_gather(into: list[Any], mine: Any, group: Any) -> None:
        for one in into:
            one.copy_(mine)

    split = rebound(utils.UlyssesSPSplitter.split_collated_batch, dist=SimpleNamespace(all_gather=all_gather))
    found = []
    for widths, ranks in (((7,), 2), ((12, 9), 3), ((5, 8), 4)):
        rows = [torch.arange(1, width + 1)[None] for width in widths]
        data = CollatedBatchData(rows, rows, rows, rows, rows, rows)
        pieces = []
        for rank in range(ranks):
            splitter = SimpleNamespace(
                sp_rank=rank, sp_group=None, sp_world_size=ranks, device=torch.device("cpu"), pad_token_id=0
            )
            pieces.append([piece[0].tolist() for piece in split(splitter, data).query_responses])
        found.append({"widths": widths, "ranks": ranks, "pieces": pieces})
    return found


def groups() -> list[list[Any]]:
    """[rewards, pass rate, whether the prompt was excluded, whether the group was dropped]."""
    from open_instruct import data_loader

    found = []
    for rewards, rate in itertools.product(REWARDS, RATES):
        excluded: list[int] = []
        result = SimpleNamespace(
            index=0,
            reward_scores=list(rewards),
            token_statistics=object(),
            responses=[[1]] * 4,
            prompt_id="0_0",
            finish_reasons=["stop"] * 4,
            masks=[[1]] * 4,
            logprobs=[[0.0]] * 4,
            reward_metrics={},
        )
        keys = (
            data_loader.INPUT_IDS_PROMPT_KEY,
            data_loader.GROUND_TRUTHS_KEY,
            data_loader.VERIFIER_SOURCE_KEY,
            data_loader.RAW_PROMPT_KEY,
        )
        group = data_loader.process_group(
            result=result,
            generation_config=SimpleNamespace(n=4),
            max_possible_score=10.0,
            tokenizer=SimpleNamespace(batch_decode=lambda ids, **options: [""] * 4),
            dataset=[dict.fromkeys(keys, "")],
            no_resampling_pass_rate=rate,
            iter_dataloader=SimpleNamespace(exclude_index=excluded.append),
            filter_zero_std_samples=True,
            replenish_prompts=False,
            param_prompt_Q=None,
            base_env_config=None,
        )
        found.append([list(rewards), rate, bool(excluded), group is None])
    return found


def seeds() -> list[list[Any]]:
    """[seed of a request, its samples, the seed of each]."""
    import dataclasses

    from open_instruct import vllm_utils

    @dataclasses.dataclass
    class Sampling:
        n: int
        seed: int | None

    found = []
    for seed, count in ((None, 2), (0, 3), (1234567, 4)):
        asked: list[Any] = []
        loops = SimpleNamespace(run_coroutine_threadsafe=lambda made, loop, into=asked: into.append(made))
        request = SimpleNamespace(
            generation_config=Sampling(count, seed),
            is_eval=False,
            index=3,
            prompt_id="0_3",
            prompt=[1],
            active_tools=None,
            env_config=None,
            ground_truth=None,
        )
        actor = SimpleNamespace(request_metadata={}, current_model_step=0, active_tasks={}, loop=None)
        names = {"process_request": lambda actor, name, sampling: sampling.seed, "make_request_id": lambda one: "r"}
        from batchbridge.kit.patches import rebound

        rebound(vllm_utils.add_request, asyncio=loops, **names)(actor, request)
        found.append([seed, count, asked])
    return found


def divergences() -> dict[str, Any]:
    """KL estimates, and their derivatives, of one token whose log-probability is that much above the reference's; the
    ratio to the old policy is 1."""
    from open_instruct import model_utils

    found: dict[str, Any] = {"differences": DIFFERENCES}
    for number in range(4):
        new = torch.tensor(DIFFERENCES, requires_grad=True)
        ratio = (new - new.detach()).exp()
        value = model_utils.estimate_kl(new.clamp(-40.0, 40.0), ratio)[number]
        value.sum().backward()
        found[str(number)] = [plain(value), plain(new.grad)]
    return found


def losses() -> dict[str, Any]:
    """Derivatives of the losses of one token each, by log ratio and advantage."""
    from open_instruct import grpo_utils

    found: dict[str, Any] = {"ratios": DIFFERENCES[1:-1]}
    for name, advantage in itertools.product(("dapo", "cispo"), (1.0, -1.0)):
        new = torch.tensor(DIFFERENCES[1:-1])[None].requires_grad_()
        config = SimpleNamespace(loss_fn=grpo_utils.GRPOLossType(name), clip_lower=0.2, clip_higher=0.3)
        ones = torch.ones_like(new)
        loss, _, _ = grpo_utils.compute_grpo_loss(new, new.exp(), ones * advantage, None, config, ones)
        loss.sum().backward()
        found[f"{name} {advantage:+g}"] = plain(new.grad[0])
    return found


def orders() -> list[dict[str, Any]]:
    """The prompts of three epochs of the data loader."""
    from datasets import Dataset
    from open_instruct.data_loader import HFDataLoader

    found = []
    for size, batch, seed in ORDERS:
        dataset = Dataset.from_dict({"index": list(range(size))})
        loader = HFDataLoader(
            dataset,
            batch,
            seed,
            0,
            1,
            "",
            collator=lambda rows: {"index": torch.tensor([row["index"] for row in rows])},
        )
        epochs = []
        for epoch in range(3):
            loader._reshard(epoch)
            epochs.append(list(loader.dataset["index"]))
        found.append({"size": size, "batch": batch, "seed": seed, "epochs": epochs})
    return found


def values(checkout: Path) -> dict[str, Any]:
    """The whole record."""
    import os

    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541")
    dist.init_process_group("gloo", rank=0, world_size=1)
    made = {
        "steps": steps(),
        "packs": packs(),
        "shards": shards(),
        "groups": groups(),
        "seeds": seeds(),
        "divergences": divergences(),
        "losses": losses(),
        "orders": orders(),
    }
    dist.destroy_process_group()
    return recorded(checkout / "open_instruct", FUNCTIONS, commit=COMMIT, values=plain(made))


if __name__ == "__main__":
    sys.stdout.write(text_of(values(Path(sys.argv[1]))))
