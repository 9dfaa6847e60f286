"""The contract that every adapter keeps, with meanings that were written down by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from batchbridge import Source, Spec
from batchbridge.kit import (
    Advantage,
    Carried,
    Context,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Topology,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from batchbridge_prime_rl.config import PrimeRLAdapter
from batchbridge_prime_rl.rules import RULES
from batchbridge_prime_rl.settings import KEYS, SHARED

PUBLISHED = Path(__file__).with_name("published.json")
CONTEXT = Context(framework_version="0.8.0")
REVERSE_TEXT: dict[str, Any] = {
    "max_steps": 20,
    "seq_len": 2048,
    "deployment": {"num_train_gpus": 1, "num_infer_gpus": 1},
    "orchestrator": {
        "batch_size": 128,
        "group_size": 16,
        "train": {"sampling": {"max_completion_tokens": 128}, "source": [{"name": "reverse-text"}]},
    },
    "trainer": {"optim": {"lr": 3e-6}},
    "inference": {},
}
MEANING = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=None, completions_per_prompt=16, sample_unit="trajectory"),
    optimizer_step=OptimizerStep(completions_per_step=128),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(optimizer_steps=20),
    micro_batch=MicroBatch(tokens_per_device=2048),
    advantage=Advantage(baseline="group_mean", scale="none"),
    order=Order(prompt_shuffle="none", last_rollout="wrap"),
    objective=Objective(
        surrogate="dppo_tv",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="sampler",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="apply",
    ),
    carried=Carried(
        learning_rate=3e-6,
        lr_schedule="constant",
        warmup_steps=0.0,
        optimizer="adamw",
        beta1=0.9,
        beta2=0.999,
        optimizer_epsilon=1e-8,
        weight_decay=0.01,
        weight_decay_excludes="nothing",
        max_gradient_norm=1.0,
        dropout="on",
        max_completion_tokens=128,
        max_total_tokens=2048,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        precision="bf16",
    ),
    open_terms=("loss: train.filter_zero_advantages", "objective: loss.kl_tau 0.001"),
).replace(**{"staleness.mode": "bounded", "staleness.maximum": 8, "staleness.unit": "weight_versions"})
"""configs/basic/reverse-text/rl.toml by prime-rl's documentation and code: no adapter was asked."""
SEVERAL_NODES: dict[str, Any] = {
    "max_steps": 100,
    "seq_len": 32768,
    "slurm": {"job_name": "rl"},
    "inference": {},
    "deployment": {"type": "multi_node", "num_train_nodes": 4, "num_infer_nodes": 2},
    "trainer": {
        "model": {"cp": 2, "impl": "custom"},
        "optim": {"type": "muon", "lr": 1e-5, "max_norm": "None"},
        "loss": {"type": "ipo", "kl_tau": 0.0, "adv_tau": 0.5},
        "scheduler": {"type": "cosine", "warmup_steps": 5, "min_lr": 1e-6},
    },
    "orchestrator": {
        "token_batch_size": 1_000_000,
        "group_size": 8,
        "max_off_policy_steps": 0,
        "algo": {"type": "max_rl"},
        "train": {
            "filter_zero_advantages": False,
            "sampling": {"extra_body": {"top_k": 20, "min_p": 0.05}},
            "source": [
                {
                    "name": name,
                    "ratio": ratio,
                    "curriculum": {"gates": {"zero": {"type": "advantage_range"}}},
                }
                for name, ratio in (("math", 0.75), ("code", 0.25))
            ],
        },
    },
}
SEVERAL = MEANING.replace(
    **{
        "topology": Topology(world_size=32, context_parallel=2),
        "rollout": Rollout(
            prompts_per_rollout=None,
            completions_per_prompt=8,
            sample_unit="trajectory",
            group_filter="replace_zero_variance",
        ),
        "optimizer_step": OptimizerStep(tokens_per_step=1_000_000),
        "horizon": Horizon(optimizer_steps=100),
        "micro_batch": MicroBatch(tokens_per_device=16384),
        "staleness.mode": "sync",
        "staleness.maximum": 0,
        "staleness.unit": "rollouts",
        "objective.surrogate": "ipo",
        "objective.clip_low": 0.1,
        "objective.clip_high": 0.1,
        "carried.learning_rate": 1e-5,
        "carried.lr_schedule": 'cosine_with_min_lr {"min_lr_rate": 0.1, "warmup_start_rate": 0.1}',
        "carried.warmup_steps": 5.0,
        "carried.optimizer": "muon",
        "carried.beta2": 0.95,
        "carried.optimizer_epsilon": None,
        "carried.max_gradient_norm": 0.0,
        "carried.max_completion_tokens": None,
        "carried.max_total_tokens": 32768,
        "carried.top_k": 20,
        "open_terms": (
            "advantage: loss.adv_tau 0.5",
            "advantage: max_rl",
            "carried: optim.mu 0.95",
            'carried: sampling.extra_body {"min_p": 0.05}',
            "order: sources [0.75, 0.25]",
        ),
    }
)
"""The second case by prime-rl's code: Muon's own second decay, rows of seq_len for two devices, no age at all."""
LINEAR: dict[str, Any] = {
    "trainer": {
        "max_steps": 50,
        "optim": {"type": "sgd", "lr": 1e-4},
        "scheduler": {"type": "linear", "warmup_steps": 0, "decay_steps": 20},
        "model": {"full_offload": False},
    },
    "orchestrator": {"max_steps": 50, "group_size": 4, "algo": {"type": "rae", "decay": 0.9}},
}
LINEAR_MEANING = MEANING.replace(
    **{
        "rollout.completions_per_prompt": 4,
        "horizon.optimizer_steps": 50,
        "advantage.baseline": "none",
        "carried.learning_rate": 1e-4,
        "carried.lr_schedule": 'linear_at_the_end {"decay_steps": 20, "min_lr_rate": 1e-08}',
        "carried.optimizer": "sgd",
        "carried.beta1": None,
        "carried.beta2": None,
        "carried.optimizer_epsilon": None,
        "carried.max_completion_tokens": None,
        "open_terms": (
            "advantage: algo.decay 0.9",
            "advantage: rae",
            "carried: optim.momentum 0.9",
            "carried: optim.nesterov",
            "loss: train.filter_zero_advantages",
            "objective: loss.kl_tau 0.001",
        ),
    }
)
ENDLESS = MEANING.replace(
    **{
        "horizon.optimizer_steps": 1_000_000_000,
        "rollout.completions_per_prompt": 1,
        "carried.learning_rate": 1e-6,
        "carried.max_completion_tokens": None,
        "open_terms": ("horizon: endless", "loss: train.filter_zero_advantages", "objective: loss.kl_tau 0.001"),
    }
)
"""prime-rl's defaults: a run without an end, groups of one."""
ECHO: dict[str, Any] = {
    "max_steps": 3,
    "orchestrator": {
        "batch_size": 8,
        "group_size": 4,
        "algo": {"type": "echo", "roles": {"user": {"alpha": 0.05}}, "length_penalty": {"num_turns_weight": 0.0}},
    },
    "trainer": {
        "optim": {"max_norm": 0.5},
        "scheduler": {"type": "linear", "warmup_steps": 2, "decay_steps": 0, "min_lr": 1e-7},
    },
    "deployment": {"num_train_gpus": 7},
}


def _invalid(name: str, code: int | str, **values: Any) -> InvalidCase:
    text = code if isinstance(code, str) else f"BB-PRIME-{code:03}"
    given = {"max_steps": 10, **{key.replace("__", "."): value for key, value in values.items()}}
    marked = {"orchestrator.max_off_policy_steps": 8, **given}
    return InvalidCase(name=name, source=Source(values=marked), context=CONTEXT, codes=(text,))


NODES: dict[str, Any] = {"deployment__type": "multi_node", "deployment__num_train_nodes": 3, "slurm": {"job_name": "a"}}


OPEN: dict[str, dict[str, Any]] = {
    "its signal is not an advantage": {"orchestrator.algo.type": "opd"},
    "is code that is not read": {"trainer.loss.type": "custom", "trainer.loss.import_path": "mine.loss"},
    "sources differ in group_size": {"orchestrator.train.source": [{"name": "a", "group_size": 2}]},
    "sources differ in algo.type": {"orchestrator.train.source": [{"algo": {"type": "max_rl"}}]},
    "sources differ in sampling.temperature": {"orchestrator.train.source": [{"sampling": {"temperature": 0.5}}]},
    "expected a whole number from 1": {"orchestrator.train.source": [{"group_size": "x"}]},
    "a gate other than one for groups": {
        "orchestrator.train.source": [
            {"curriculum": {"gates": {"a": {"type": "advantage_range", "reject_min": -0.5, "reject_max": 0.5}}}}
        ]
    },
    "some sources have a gate": {
        "orchestrator.train.source": [{"curriculum": {"gates": {"a": {"type": "advantage_range"}}}}, {"name": "b"}]
    },
    "a sampler that looks at rewards": {
        "orchestrator.train.source": [{"curriculum": {"sampler": {"type": "difficulty_pool"}}}]
    },
    "its filter is code": {"orchestrator.algo.type": "echo", "orchestrator.algo.filter.import_path": "mine.keep"},
    "top_k": {"orchestrator.train.sampling.extra_body": {"top_k": "many"}},
}


@pytest.mark.parametrize("why", OPEN)
def test_what_has_no_word_is_left_open_by_name(why: str) -> None:
    values = {"max_steps": 10, "orchestrator.batch_size": 128, **OPEN[why]}
    reading = PrimeRLAdapter().read(Source(values=values), CONTEXT)
    (found,) = reading.findings
    assert (reading.verdict, found.code, reading.spec) == ("undecided", "BB-PRIME-006", None)
    assert why in found.message


def _said_twice() -> dict[str, Any]:
    """A value of each setting that the run and its parts have to say alike, said by all of them."""
    kinds = {row.key: row.kind for row in KEYS}
    said: dict[str, Any] = {}
    for key, parts in SHARED.items():
        tried = (*kinds[key].schema.get("enum", ()), "a_word", 2, True)
        value = next(value for value in tried if value is not None and kinds[key].takes(value))
        said |= {} if key in (*REVERSE_TEXT, "model.vlm") else dict.fromkeys((key, *parts), value)
    return said


class TestPrimeRLAdapter(AdapterContract):
    adapter_class = PrimeRLAdapter
    framework_modules = ("prime_rl", "torch", "vllm", "verifiers", "pydantic_config")
    unknown_version = "0.5.0"
    written_version = "0.8.0"
    rules = RULES
    meanings = (
        (
            {"trainer.optim.type": "sign_sgd"},
            {
                "carried.optimizer": "sign_sgd",
                "carried.beta1": None,
                "carried.beta2": None,
                "carried.optimizer_epsilon": None,
            },
        ),
        (
            {"orchestrator.algo.type": "echo"},
            {
                "open_terms": (
                    "loss: train.filter_zero_advantages",
                    'objective: algo.roles {"tool": {"alpha": 0.1}}',
                    "objective: echo",
                    "objective: loss.kl_tau 0.001",
                )
            },
        ),
    )
    excused: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            ("seq_len", "trainer.model.cp"), "a row of seq_len is shared out, so that only multiples of cp come back"
        ),
        "trainer.loss.type = 'custom'": "code that is not read",
        **dict.fromkeys(
            (f"orchestrator.algo.type = {name!r}" for name in ("hierarchical_grpo", "opd", "opsd", "sft")),
            "its signal is not an advantage of a group",
        ),
    }
    valid = (
        ValidCase(
            name="one node",
            source=Source(values=REVERSE_TEXT),
            context=CONTEXT,
            spec=MEANING,
            source_has_world_size=True,
        ),
        ValidCase(
            name="several nodes",
            source=Source(values=SEVERAL_NODES),
            context=CONTEXT,
            spec=SEVERAL,
            source_has_world_size=True,
        ),
        ValidCase(
            name="the parts' own settings",
            source=Source(values=LINEAR),
            context=CONTEXT,
            spec=LINEAR_MEANING,
            source_has_world_size=True,
        ),
        ValidCase(
            name="defaults",
            source=Source(values={"orchestrator": {"batch_size": 128}}),
            context=CONTEXT,
            spec=ENDLESS,
            source_has_world_size=True,
        ),
        ValidCase(
            name="a bound that is switched off",
            source=Source(
                values={
                    **REVERSE_TEXT,
                    "trainer": {
                        "optim": {"lr": 3e-6, "max_norm": 0.0},
                        "model": {"ep_comm_backend": "deepep", "ep": 2, "optim_cpu_offload": False},
                    },
                }
            ),
            context=CONTEXT,
            spec=MEANING.replace(**{"carried.max_gradient_norm": 0.0}),
            source_has_world_size=True,
        ),
        ValidCase(
            name="said twice",
            source=Source(values={**REVERSE_TEXT, **_said_twice()}),
            context=CONTEXT,
            source_has_world_size=True,
        ),
        ValidCase(name="echo", source=Source(values=ECHO), context=CONTEXT, source_has_world_size=True),
    )
    invalid = (
        _invalid("a stranger", 4, orchestrator__batchsize=8),
        _invalid("no number", 5, orchestrator__batch_size="x"),
        _invalid("a table that is a number", 5, trainer__optim=1),
        _invalid("two places", 10, trainer__max_steps=11, orchestrator__max_steps=11),
        _invalid("two ends", 11, max_steps=None, trainer__max_steps=11, orchestrator__max_steps=12),
        _invalid("longer rows", 12, trainer__model__seq_len=1024, orchestrator__seq_len=4096),
        _invalid("two units", 13, orchestrator__batch_size=8, orchestrator__token_batch_size=4096),
        _invalid("torn groups", 14, orchestrator__batch_size=100, orchestrator__group_size=16),
        _invalid("small flight", 15, orchestrator__group_size=16, orchestrator__concurrency__max_inflight=8),
        _invalid("first above most", 16, orchestrator__concurrency__initial_inflight=2048),
        _invalid(
            "nothing linear",
            17,
            **{f"trainer__scheduler__{k}": v for k, v in (("type", "linear"), ("warmup_steps", 0), ("decay_steps", 0))},
        ),
        _invalid("long decay", 17, trainer__scheduler__type="linear"),
        _invalid("long warm-up", 17, trainer__scheduler__type="cosine"),
        _invalid("a full node", 18, deployment__num_train_gpus=8),
        _invalid("no slurm", 19, deployment__type="multi_node", deployment__num_train_nodes=2),
        _invalid("no nodes", 19, deployment__type="multi_node", slurm={"job_name": "a"}),
        _invalid("no server", 19, **NODES, deployment__num_infer_nodes=1),
        _invalid("a server too many", 19, **NODES, deployment__num_infer_nodes=0, inference={"server": {}}),
        _invalid("torn nodes", 19, **NODES, deployment__nodes_per_fsdp_group=2),
        InvalidCase(
            name="other nodes",
            source=Source(values=SEVERAL_NODES),
            context=Context(framework_version="0.8.0", world_size=16),
            codes=("BB-PRIME-020",),
        ),
        _invalid("gradients of nothing", 21, trainer__optim__max_norm=0.0),
        _invalid("two offloads", 22, trainer__model__fsdp_cpu_offload=True),
        _invalid("full and state", 22, trainer__model__full_offload=True),
        _invalid(
            "offloaded sgd",
            23,
            trainer__model__full_offload=True,
            trainer__model__optim_cpu_offload=False,
            trainer__optim__type="sgd",
        ),
        _invalid(
            "offloaded muon",
            24,
            trainer__model__fsdp_cpu_offload=True,
            trainer__model__optim_cpu_offload=False,
            trainer__optim__type="muon",
        ),
        _invalid("seeing in fp32", 25, model__vlm={"language_model_attr": "a", "vision_encoder_attr": "b"}),
        _invalid("seeing with hf", 32, model__vlm={"language_model_attr": "a", "vision_encoder_attr": "b"}),
        _invalid("remote code", 32, trainer__model__trust_remote_code=True, trainer__model__impl="custom"),
        _invalid("lora by nccl", 26, trainer__model__lora={"rank": 8}, weight_broadcast__type="nccl"),
        _invalid("hf with cp", 27, trainer__model__impl="hf", trainer__model__cp=2, deployment__num_train_gpus=2),
        _invalid("deepep alone", 28, trainer__model__ep_comm_backend="deepep", trainer__model__ep=1),
        _invalid("replay on hf", 29, trainer__model__impl="hf", trainer__enable_router_replay=True),
        _invalid("no loss", 30, trainer__loss__type="custom"),
        InvalidCase(
            name="other devices",
            source=Source(values=REVERSE_TEXT),
            context=Context(framework_version="0.8.0", world_size=4),
            codes=("BB-PRIME-003",),
        ),
    )
    foreign = (
        Source(values={"per_device_train_batch_size": 4, "num_generations": 8, "max_steps": 10}),
        Source(values={"trainer.algorithm.advantage_estimator": "grpo", "trainer.train_batch_size": 8}),
        Source(values={"data.train_batch_size": 8, "trainer.total_epochs": 1, "algorithm.adv_estimator": "grpo"}),
    )
    unwritable = (
        MEANING.replace(**{"rollout.prompts_per_rollout": 8}),
        MEANING.replace(**{"advantage.scale": "group", "advantage.ddof": 1}),
        MEANING.replace(**{"objective.kl_placement": "loss", "objective.kl_estimator": "k3"}),
        MEANING.replace(**{"optimizer_step.passes_per_rollout": 2}),
    )


def test_an_editor_takes_published_files_and_refuses_what_a_reading_refuses() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked by the jsonschema package")
    schema = jsonschema.Draft7Validator(PrimeRLAdapter().file_schema("0.8.0"))
    for given in [row["given"] for row in json.loads(PUBLISHED.read_text(encoding="utf-8")).values()]:
        values: dict[str, Any] = {}
        for key, value in given.items():
            *groups, name = key.split(".")
            node = values
            for group in groups:
                node = node.setdefault(group, {})
            node[name] = value
        assert list(schema.iter_errors(values)) == []
    assert schema.is_valid({"orchestrator": {"max_steps": "None"}})
    for wrong in ({"orchestrator": {"batch_size": "many"}}, {"orchestrator": {"bach_size": 8}}, {"max_steps": "none"}):
        assert not schema.is_valid(wrong)
