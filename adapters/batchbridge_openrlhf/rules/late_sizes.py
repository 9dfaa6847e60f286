"""Errors of places and sizes that OpenRLHF notices once its processes have started."""

from __future__ import annotations

from collections.abc import Callable

from batchbridge import Fix
from batchbridge.kit import LARGEST, nearest_numbers
from batchbridge.kit.rule_table import BUILDING, STARTING, Rules, says
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import ALL, OpenRlhfFacts, below_one_fixes, fix_of, fixes_of, world_changes, world_fixes
from batchbridge_openrlhf.meaning import precision
from batchbridge_openrlhf.rules import printed
from batchbridge_openrlhf.settings import holds
from batchbridge_openrlhf.sizes import FIELDS

_COLOCATED, _RANKS, _PARTS = "train.colocate_all", "vllm.tensor_parallel_size", ("num_nodes", "num_gpus_per_node")

RULES = Rules[OpenRlhfFacts]()


def _tensor_precision_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    new = holds(">=0.9.2", facts.version)
    return fixes_of(facts, "ds.param_dtype", "bf16") if new else fixes_of(facts, "bf16", True)


@RULES.add(BUILDING, "BB-ORL-035", names.TENSOR, "ds.param_dtype", "bf16", fixes=_tensor_precision_fixes)
@says("AssertionError: BF16 is required for tensor parallel training", f"{ALL} DeepspeedStrategy.__init__")
def _tensor_precision(facts: OpenRlhfFacts) -> str | None:
    if facts.sizes.tensor <= 1 or precision(facts.settings, facts.version) == "bf16":
        return None
    return f"{facts.name_and_value(names.TENSOR)} needs bf16"


def _places(*models: str) -> list[str]:
    return [f"{model}.{part}" for model in models for part in _PARTS]


def _place_fixes(first: str, second: str) -> Callable[[OpenRlhfFacts], tuple[Fix, ...]]:
    return lambda facts: (fix_of(facts, {f"{second}.{part}": facts[f"{first}.{part}"] for part in _PARTS}),)


def _same_places(first: str, second: str, facts: OpenRlhfFacts) -> str | None:
    broken = [
        f"{facts.name_and_value(f'{first}.{part}')} and {facts.name_and_value(f'{second}.{part}')}"
        for part in _PARTS
        if facts[f"{first}.{part}"] != facts[f"{second}.{part}"]
    ]
    return f"colocated models need the same devices: {', '.join(broken)}" if broken else None


@RULES.add(BUILDING, "BB-ORL-031", *_places("ref", "actor"), fixes=_place_fixes("actor", "ref"))
@says(
    "AssertionError: num_nodes and num_gpus_per_node must be the same when colocate actor and ref model.",
    f"{ALL} cli/train_ppo_ray.py train",
)
def _reference_place(facts: OpenRlhfFacts) -> str | None:
    colocated = facts["train.colocate_actor_ref"] or facts[_COLOCATED]
    # A world size that was asked for beside the options stands for all colocated models.
    if not colocated or facts["algo.kl.init_coef"] <= 0 or facts.sizes.asked:
        return None
    return _same_places("actor", "ref", facts)


def _engine_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    world, ranks = facts.sizes.world, facts[_RANKS]
    fixes = fixes_of(facts, names.ENGINES, world // ranks) if ranks > 0 and world % ranks == 0 else ()
    if 0 < (generating := facts[names.ENGINES] * ranks) <= LARGEST:
        fixes += (fix_of(facts, world_changes(facts, generating)),)
    return fixes


@RULES.add(BUILDING, "BB-ORL-030", _COLOCATED, *_places("actor"), names.ENGINES, _RANKS, fixes=_engine_fixes)
@says(
    "AssertionError: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
    "vllm_tensor_parallel_size",
    f"{ALL} cli/train_ppo_ray.py train",
)
def _engines_cover(facts: OpenRlhfFacts) -> str | None:
    engines, ranks = facts[names.ENGINES], facts[_RANKS]
    if not facts[_COLOCATED] or facts[names.ASYNC] or not engines or engines < 1:
        return None
    if facts.sizes.world == engines * ranks:
        return None
    generating = f"{facts.name(names.ENGINES)} {engines} x {facts.name(_RANKS)} {ranks}"
    return (
        f"{facts.name(_COLOCATED)}: {facts.sizes.world} devices train, and {generating} = {engines * ranks} "
        "devices generate; they must be the same"
    )


@RULES.add(BUILDING, "BB-ORL-032", *_places("critic", "reward"), fixes=_place_fixes("critic", "reward"))
@says(
    "AssertionError: num_nodes and num_gpus_per_node must be the same when colocate critic and reward model",
    f"{ALL} cli/train_ppo_ray.py train",
)
def _reward_place(facts: OpenRlhfFacts) -> str | None:
    colocated = facts["train.colocate_critic_reward"] and facts.has_critic
    return _same_places("critic", "reward", facts) if colocated else None


BELOW_ONE = "BB-ORL-010"
"""The one of these rules that can be asked where a size is below 1."""
_AT_LEAST_ONE = [identity for identity in FIELDS.values() if identity not in (names.PASSES, names.EPISODES)]
_AT_LEAST_ONE.append(names.GENERATION)


@RULES.add(STARTING, BELOW_ONE, *_AT_LEAST_ONE, fixes=below_one_fixes)
@says(
    "ZeroDivisionError, or an assertion of DeepSpeed or Ray; with vllm_generate_batch_size it ends without a rollout",
    f"{ALL} cli/train_ppo_ray.py and DeepspeedStrategy.setup_distributed",
)
def _below_one(facts: OpenRlhfFacts) -> str | None:
    below = [f"{facts.name(identity)} = {value}" for identity, value in facts.sizes.below_one.items()]
    return f"{', '.join(below)}: must be at least 1" if below else None


@RULES.add(
    STARTING, "BB-ORL-033", names.NODES, names.DEVICES, names.RING, names.TENSOR, fixes=world_fixes, core="BB102"
)
@says(
    "RuntimeError: In order to get the mesh Tensor of a DeviceMesh it needs to ... contain the local rank, on "
    "the devices left over (ring attention, or DeepSpeed's tensor parallelism); AssertionError with too few",
    f"{ALL} DeepspeedStrategy.setup_distributed; run: torch 2.13.0, deepspeed 0.19.6 _init_tp_mesh_device",
)
def _whole_replicas(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    if s.whole_replicas:
        return None
    replica = f"{facts.name(names.RING)} {s.ring} x {facts.name(names.TENSOR)} {s.tensor} devices"
    return f"{s.world} devices cannot be shared out to replicas of {replica}"


def _step_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    """The nearest train batches, micro-batches and worlds that DeepSpeed takes, one at a time where that suffices."""
    s = facts.sizes
    if s.replicas < 1:
        return world_fixes(facts)
    fixes = fixes_of(facts, names.TRAIN, *nearest_numbers(s.train, multiple_of=s.micro * s.replicas))
    if s.train % s.replicas == 0:
        fixes += fixes_of(facts, names.MICRO, *nearest_numbers(s.micro, divides=s.train // s.replicas))
    if s.train % s.micro == 0:
        for replicas in nearest_numbers(s.replicas, divides=s.train // s.micro):
            if s.completions_per_rollout // s.forward_micro >= replicas:
                fixes += (fix_of(facts, world_changes(facts, replicas * s.ring * s.tensor)),)
    return fixes


@RULES.add(
    STARTING,
    "BB-ORL-034",
    names.TRAIN,
    names.MICRO,
    names.NODES,
    names.DEVICES,
    fixes=_step_fixes,
    core="BB122",
    text=(printed.DEEPSPEED_BATCH, printed.ACCUMULATION_ZERO),
)
@says(
    "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size (after vLLM and the models are loaded); AssertionError: Gradient accumulation "
    "steps: ... has to be greater than 0",
    "deepspeed 0.19.6 DeepSpeedConfig, with openrlhf 0.8.0 to 0.11.2 get_ds_train_config",
)
def _whole_steps(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    if s.dynamic or not s.whole_replicas or s.whole_accumulation:
        return None
    share = f"{facts.name(names.MICRO)} {s.micro} x {s.replicas} replicas = {s.micro * s.replicas}"
    return f"{facts.name_and_value(names.TRAIN)} (completions per optimizer step) is not a multiple of {share}"


def _others(facts: OpenRlhfFacts) -> dict[str, int]:
    """Further models that DeepSpeed prepares with the policy's batch sizes -> the devices of each.

    A mapping may be a part of the options, and a world that was asked for stands for all models: what is not named
    there has the policy's devices. Source: openrlhf 0.8.0 to 0.11.2 DeepspeedStrategy.get_ds_eval_config.
    """
    # Where a mapping names no reward model, a server or a function may give the rewards.
    rewarded = not facts.remote_reward and facts["reward.model_name_or_path"] is not None
    there = {"ref": facts["algo.kl.init_coef"] > 0, "critic": facts.has_critic, "reward": rewarded}
    found = {}
    for model in [model for model, is_there in there.items() if is_there]:
        keys = (f"{model}.num_nodes", f"{model}.num_gpus_per_node")
        if not facts.sizes.asked and (facts.whole or facts.given_options & {*keys}):
            found[model] = facts[keys[0]] * facts[keys[1]]
        elif facts.sizes.dynamic and model != "critic":
            found[model] = facts.sizes.world
    if facts.sizes.dynamic and facts["train.enable_ema"]:
        found["ema"] = facts.sizes.world
    return found


def _other_model_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    if not facts.sizes.whole_accumulation:
        return ()  # first the policy itself
    models = [model for model in _others(facts) if model != "ema"]
    return (fix_of(facts, {f"{model}.{part}": facts[f"actor.{part}"] for model in models for part in _PARTS}),)


_MODELS = (*_places("ref"), "critic.num_gpus_per_node", "reward.num_gpus_per_node")
_SPOKEN = {"ref": "the reference model", "critic": "the critic", "reward": "the reward model", "ema": "the average"}


@RULES.add(STARTING, "BB-ORL-052", names.TRAIN, names.MICRO, *_MODELS, fixes=_other_model_fixes)
@says(
    "AssertionError: Check batch related parameters, or RuntimeError of torch's init_device_mesh, for the "
    "critic or a model that is not trained (also with dynamic batches)",
    f"{ALL} DeepspeedStrategy.get_ds_eval_config; deepspeed 0.19.6 DeepSpeedConfig",
)
def _other_models(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    broken = []
    for model, world in _others(facts).items():
        replicas = world // s.ring // s.tensor
        if replicas * s.ring * s.tensor != world:
            broken.append(f"{_SPOKEN[model]} has {world} devices, no multiple of {s.ring * s.tensor}")
        elif s.dynamic and model == "critic":
            continue  # it is trained, and of trained models DeepSpeed checks fixed micro-batches only
        elif replicas < 1 or s.train % (s.micro * replicas):
            broken.append(f"{_SPOKEN[model]} has {replicas} replicas, and {s.micro} x {replicas} does not divide it")
    return (
        f"{facts.name_and_value(names.TRAIN)}, {facts.name_and_value(names.MICRO)}: {'; '.join(broken)}"
        if broken
        else None
    )
