"""Open-Instruct's own preparation of a rollout, and its learner's own step, asked for what settings make of them.

Engines answer at once, a forward pass gives a tensor, and the update keeps its gradient: what is between is
Open-Instruct's, from a command's words on. `cpu.start` first. For tests. Source: open-instruct e6c3044.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

PROMPT_TOKENS = 4
"""Of every prompt."""
FIRST_TOKEN = 1000
"""The token of which the rollout's first completion consists; each has one of its own."""


class Stop(Exception):
    """The preparation has come as far as it is asked."""


def configured(values: Mapping[str, Any]) -> tuple[Any, Any]:
    """Open-Instruct's configuration of an experiment, and of its data, as grpo_fast.py makes them of a command."""
    from open_instruct import grpo_fast

    words = ["--model_name_or_path", "m", "--push_to_hub", "false"]
    for key, value in values.items():
        words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    args, config, tools = copy.deepcopy(_parsed(*words))
    return grpo_fast.setup_runtime_variables(args, config, tools), config


@cache
def _parsed(*words: str) -> tuple[Any, Any, Any]:
    from open_instruct import data_loader, grpo_fast, grpo_utils

    groups = (grpo_fast.TokenizerConfig, grpo_fast.ModelConfig, data_loader.StreamingDataLoaderConfig)
    more = (data_loader.VLLMConfig, grpo_fast.EnvsConfig)
    parser = grpo_fast.ArgumentParserPlus((grpo_utils.GRPOExperimentConfig, *groups, *more))
    (defaults,) = (
        node.keywords
        for node in ast.walk(ast.parse(Path(grpo_fast.__file__).read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_defaults"
    )
    parser.set_defaults(**{str(one.arg): ast.literal_eval(one.value) for one in defaults})
    args, _, _, config, _, tools = parser.parse_args_into_dataclasses(list(words))
    return args, config, tools


class Engine:
    """In the place of the prompts' queue and of vLLM: each prompt is answered when it is put in."""

    def __init__(self, config: Any, **said: Any) -> None:
        self._group, self._said, self._asked = config.num_samples_per_prompt_rollout, said, 0
        self.results: queue.Queue[Any] = queue.Queue()
        self.training_step: Callable[[], int] = lambda: 0

    def put(self, request: Any) -> None:
        """Takes a prompt."""
        from open_instruct import data_types

        places = range(self._asked * self._group, (self._asked + 1) * self._group)
        lengths = [self._of("lengths", place, 4) for place in places]
        cut = [self._of("truncated", place, False) for place in places]
        age = self._of("ages", self._asked, 0)
        self._asked += 1
        info = {
            name: [empty] * self._group
            for name, empty in {
                "num_calls": 0,
                "timeouts": 0,
                "tool_errors": "",
                "tool_outputs": "",
                "tool_runtimes": 0.0,
                "tool_calleds": False,
                "tool_call_stats": [],
                "rollout_states": {},
            }.items()
        }
        answer = data_types.GenerationResult(
            responses=[[FIRST_TOKEN + place] * length for place, length in zip(places, lengths, strict=True)],
            finish_reasons=["length" if one else "stop" for one in cut],
            masks=[[1] * length for length in lengths],
            request_info=data_types.RequestInfo(**info),
            index=request.index,
            prompt_id=request.prompt_id,
            token_statistics=data_types.TokenStatistics(PROMPT_TOKENS, sum(lengths), 1.0, 0.0),
            logprobs=[
                [self._of("logprobs", place, -1.0)] * length for place, length in zip(places, lengths, strict=True)
            ],
            reward_scores=[self._of("rewards", place, float(place % self._group)) for place in places],
            reward_metrics={},
            model_step=self.training_step() - age,
        )
        self.results.put(answer)

    def _of(self, name: str, place: int, otherwise: Any) -> Any:
        said = self._said.get(name)
        return otherwise if said is None or place >= len(said) else said[place]


def prepared(
    values: Mapping[str, Any],
    *,
    dataset_size: int = 64,
    rollouts: int = 1,
    first_step: int = 0,
    seen: Mapping[str, Callable[..., Any]] = {},
    filter_zero_std_samples: bool | None = None,
    **said: Any,
) -> list[Any]:
    """What Open-Instruct's own preparation makes of the answers to a rollout, for each learner. seen: function of
    data_loader.py to what is called in its place, with the native one first. said: lists of the completions' facts,
    which say how many prompts a rollout has."""
    from datasets import Dataset
    from open_instruct import data_loader, data_types

    args, config = configured(values)
    if filter_zero_std_samples is not None:
        config.filter_zero_std_samples = filter_zero_std_samples
    group, prompts = config.num_samples_per_prompt_rollout, config.num_unique_prompts_rollout
    of_completions = [len(said[name]) for name in ("rewards", "lengths") if name in said]
    prompts = of_completions[0] // group if of_completions else prompts
    engine = Engine(config, **said)
    columns = (data_loader.GROUND_TRUTHS_KEY, data_loader.VERIFIER_SOURCE_KEY, data_loader.RAW_PROMPT_KEY)
    questions = {data_loader.INPUT_IDS_PROMPT_KEY: [[1] * PROMPT_TOKENS] * dataset_size}
    texts = dict.fromkeys(columns, [""] * dataset_size)
    actor = data_loader.DataPreparationActor.__ray_metadata__.modified_class(
        dataset=Dataset.from_dict({"index": list(range(dataset_size)), **questions, **texts}),
        inference_results_Q=engine.results,
        param_prompt_Q=engine,
        tokenizer=SimpleNamespace(batch_decode=lambda ids, **_: [""] * len(ids), pad_token_id=0, eos_token_id=2),
        config=config,
        generation_config=SimpleNamespace(n=group),
        num_training_steps=first_step + rollouts,
        seed=args.seed,
        per_device_train_batch_size=args.per_device_train_batch_size,
        global_batch_size=prompts,
        dp_world_size=args.world_size // args.sequence_parallel_size,
        max_possible_score=config.max_possible_score,
        actor_manager=None,
        model_dims=None,
        verbose=False,
        work_dir="",
        tool_names=[],
        run_name="",
        model_name=None,
        base_env_config=data_types.EnvConfig(),
    )
    actor.training_step, actor._last_consumed_step = first_step, first_step + rollouts  # no learner is waited for
    engine.training_step = lambda: int(actor.training_step)
    with contextlib.ExitStack() as patched:
        for name, see in seen.items():
            patched.enter_context(patch.object(data_loader, name, partial(see, getattr(data_loader, name))))
        patched.enter_context(patch.object(data_loader.torch.cuda, "is_available", lambda: False))
        try:
            actor._data_preparation_loop()
        except Stop:
            return []
    return list(actor.prepared_data[first_step])


def prepared_until(values: Mapping[str, Any], **said: Any) -> tuple[Any, Any]:
    """The answers and the batch behind `maybe_mask_truncated_completions`."""
    kept: list[Any] = []

    def see(native: Callable[..., Any], result: Any, batch: Any, enabled: bool) -> None:
        kept.extend((result, native(result, batch, enabled)))
        raise Stop

    prepared(values, seen={"maybe_mask_truncated_completions": see}, **said)
    result, batch = kept
    return result, batch


def stepped(values: Mapping[str, Any], data: Any, beside: Sequence[Any] = ()) -> list[dict[int, float]]:
    """The optimizer steps of a learner's own step on its share of a rollout: the gradient at a token of each
    completion, at ratio 1. beside: the shares of all learners, whose token counts are summed up."""
    import torch
    import torch.distributed as dist
    from open_instruct import grpo_fast, grpo_utils

    args, config = configured(values)
    args.load_ref_policy, args.beta = False, 0.0  # the weight is that of the policy's own term
    steps: list[dict[int, float]] = []
    leaves: list[tuple[Any, Any]] = []

    def forward(model: Any, ids: Any, *more: Any, **named: Any) -> tuple[Any, None]:
        leaf = torch.zeros(ids[:, 1:].shape, requires_grad=True)
        if torch.is_grad_enabled():  # else it scores the rollout before the steps
            leaves.append((ids[:, 1:], leaf))
        return leaf, None

    def update() -> None:
        made: dict[int, float] = {}
        for ids, leaf in leaves:
            own = ids >= FIRST_TOKEN
            made.update(zip(ids[own].tolist(), leaf.grad[own].tolist(), strict=True))
        steps.append(made)
        leaves.clear()

    def all_reduce(counts: Any, **named: Any) -> None:
        if beside:
            counts.copy_(sum(torch.stack([mask[:, 1:].sum().float() for mask in one.response_masks]) for one in beside))

    model = SimpleNamespace(
        set_gradient_accumulation_boundary=lambda last: None,
        backward=lambda loss: loss.backward(),
        step=update,
        get_global_grad_norm=lambda: 0.0,
    )
    learner = SimpleNamespace(
        dataloader=iter([{"batch": data, "metrics": {}}]),
        splitter=None,
        device=torch.device("cpu"),
        num_mini_batches=args.num_mini_batches,
        args=args,
        rank=1,
        model=model,
        pad_token_id=0,
        ref_policy=None,
        streaming_config=config,
        local_metrics=grpo_fast.utils.MetricsTracker(device="cpu"),
        _compute_loss_metrics=lambda *_: None,
    )
    step = grpo_fast.PolicyTrainerRayProcess.__ray_metadata__.modified_class.step
    with patch.object(grpo_utils, "forward_for_logprobs", forward), patch.object(dist, "all_reduce", all_reduce):
        step(learner)
    return steps
