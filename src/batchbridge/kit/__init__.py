"""What authors of adapters build with: `batchbridge.kit` has the core's words, its modules the tools.

An adapter imports `batchbridge`, this package and modules of it, and nothing else of BatchBridge. Everything here is
loaded when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchbridge.contract.attachment import Request
    from batchbridge.contract.error_text import Ask, ErrorText, Numbers
    from batchbridge.contract.evidence import Code, Package
    from batchbridge.contract.outside import SharedSetting
    from batchbridge.contract.reading import Context, Defect, NativeRow, NativeStep
    from batchbridge.kit.objectives import KL_ESTIMATORS, Surrogate, clip_bounds
    from batchbridge.kit.packed_batches import partition_packed
    from batchbridge.kit.step_cost import (
        Observed,
        StepCost,
        Terms,
        fit_cost,
        micro_batch_terms,
        packed_terms,
        partition_by_cost,
    )
    from batchbridge.ledger import digest_floats, fingerprint, read_steps
    from batchbridge.meaning.advantages import RULED, group_advantages
    from batchbridge.meaning.candidates import CandidatePlan
    from batchbridge.meaning.critic_run import run_of_critic
    from batchbridge.meaning.findings import Phase, Severity
    from batchbridge.meaning.micro_batches import (
        Length,
        MicroBatches,
        linear,
        partition,
        partition_by_tokens,
        with_attention,
    )
    from batchbridge.meaning.plan import RolloutPlan, StepPlan
    from batchbridge.meaning.spec import (
        Advantage,
        Carried,
        DenominatorScope,
        Horizon,
        Loss,
        LossTerm,
        MicroBatch,
        Objective,
        OptimizerStep,
        Order,
        Rollout,
        Topology,
        walk,
    )
    from batchbridge.meaning.weights import Normaliser, Row, token_weights
    from batchbridge.reading.arguments import parse_arguments, parse_scalar, set_on_top
    from batchbridge.reading.files import load_source, near_file
    from batchbridge.reading.launchers import launched_world_size
    from batchbridge.rules.nearest_numbers import LARGEST, Variable, nearest_numbers, neighbours
    from batchbridge.running.follow import follow, follow_before
    from batchbridge.running.launch import call_after_import, current_launch
    from batchbridge.running.launch_ray import reach_workers

__all__ = [
    "KL_ESTIMATORS",
    "LARGEST",
    "RULED",
    "Advantage",
    "Ask",
    "CandidatePlan",
    "Carried",
    "Code",
    "Context",
    "Defect",
    "DenominatorScope",
    "ErrorText",
    "Horizon",
    "Length",
    "Loss",
    "LossTerm",
    "MicroBatch",
    "MicroBatches",
    "NativeRow",
    "NativeStep",
    "Normaliser",
    "Numbers",
    "Objective",
    "Observed",
    "OptimizerStep",
    "Order",
    "Package",
    "Phase",
    "Request",
    "Rollout",
    "RolloutPlan",
    "Row",
    "Severity",
    "SharedSetting",
    "StepCost",
    "StepPlan",
    "Surrogate",
    "Terms",
    "Topology",
    "Variable",
    "call_after_import",
    "clip_bounds",
    "current_launch",
    "digest_floats",
    "fingerprint",
    "fit_cost",
    "follow",
    "follow_before",
    "group_advantages",
    "launched_world_size",
    "linear",
    "load_source",
    "micro_batch_terms",
    "near_file",
    "nearest_numbers",
    "neighbours",
    "packed_terms",
    "parse_arguments",
    "parse_scalar",
    "partition",
    "partition_by_cost",
    "partition_by_tokens",
    "partition_packed",
    "reach_workers",
    "read_steps",
    "run_of_critic",
    "set_on_top",
    "token_weights",
    "walk",
    "with_attention",
]

if not TYPE_CHECKING:  # a type checker that saw this function would take every misspelt name for an attribute
    from batchbridge.lazily import loader

    __getattr__, __dir__ = loader(__name__)
