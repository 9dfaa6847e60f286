"""The words of `doctor` about a text that verl prints and a rule is about, beyond the rule's row; see `Rule.text`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import devices, divisors, multiples, pattern, setting, smallest_factor

PROMPTS = "data.train_batch_size"

_MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"

_MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"

_DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")

SAMPLES = Ask(name="n", question="rollout.n (completions per prompt)")

_MINI_PROMPTS = Ask(name="mini", question="ppo_mini_batch_size (prompts)")

_MICRO_COMPLETIONS = Ask(name="micro", question="ppo_micro_batch_size_per_gpu (completions)")


def whole(key: str, unit: int, n: Numbers, prompts: int) -> Iterator[Fix]:
    """The numbers of prompts nearest to `prompts` whose completions are a multiple of `unit`."""
    return setting(key, *multiples(smallest_factor(unit, n["n"]), prompts))


def _step(n: Numbers) -> Iterator[Fix]:
    """Ways out for an optimizer step: `mini` is in completions here: prompts x rollout.n."""
    return whole(_MINI, n["replicas"], n, n["mini"] // n["n"])


def _micro(n: Numbers) -> Iterator[Fix]:
    share, rest = divmod(n["mini"] * n["n"], n["devices"])
    if share and not rest:
        yield from setting(_MICRO, *divisors(share, n["micro"]))
    yield from whole(_MINI, n["micro"] * n["devices"], n, n["mini"])


def _parallel(n: Numbers) -> Iterator[Fix]:
    return (Fix(f"{count} devices") for count in multiples(n["tensor"] * n["context"], n["devices"]))


def _mini_of_micro(n: Numbers) -> Iterator[Fix]:
    mini, micro = n["mini"], n["micro"]
    yield from setting(_MICRO, *(divisors(mini, micro) if mini else []))
    if "devices" in n and "n" in n:
        yield from whole(_MINI, micro * n["devices"], n, mini * n["devices"] // n["n"])


def minimal_batch(n: Numbers) -> Iterator[Fix]:
    yield from (Fix(f"train_batch_size x n = {size} (completions)") for size in multiples(n["minimal"], n["real"]))
    if n.get("n"):
        yield from whole(PROMPTS, n["minimal"], n, n["real"] // n["n"])


def _engine_devices(n: Numbers) -> Iterator[Fix]:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    yield from setting(key, *(size for size in divisors(n["world"], n["tensor"]) if size <= n["world"]))
    yield from devices(*multiples(n["tensor"], n["world"]))


def _prompts_at_least(n: Numbers) -> Iterator[Fix]:
    yield from setting(PROMPTS, n["mini"])
    yield from setting(_MINI, *divisors(n["prompts"], n["prompts"]))


def _minis(n: Numbers) -> Iterator[Fix]:
    if n.get("rows") and n.get("mini"):
        yield from (
            Fix(f"{size} completions for each replica and optimizer step") for size in divisors(n["rows"], n["mini"])
        )
    yield Fix("data.train_batch_size as a multiple of actor_rollout_ref.actor.ppo_mini_batch_size (both in prompts)")


MINI_BATCH_ZERO = ErrorText(
    name="verl-mini-batch-zero",
    pattern=pattern(r"ppo_mini_batch_size # should be larger than 0 after normalization", "mini"),
    rule="ppo_mini_batch_size (prompts) x rollout.n is at least the data-parallel size",
    meaning="the mini-batch is shared out to the devices with integer division, and nothing is left for each",
    source="PRIME-RL/TTRL issue 43",
    neighbours=lambda n: setting(_MINI, -(-n["devices"] // n["n"])),
    asks=(_DEVICES, SAMPLES),
)

MINI_OF_MICRO = ErrorText(
    name="verl-mini-of-micro",
    pattern=pattern(
        r"normalized ppo_mini_batch_size #(?: should be|:? must be)? divisible by ppo_micro_batch_size_per_gpu #",
        "mini",
        "micro",
    ),
    rule="ppo_mini_batch_size x rollout.n / data-parallel size (completions per device) is a multiple of "
    "ppo_micro_batch_size_per_gpu (completions)",
    meaning="the last micro-batch would be smaller; before verl pull request 833 it was not checked, and training "
    "gave NaN",
    source="volcengine/verl pull requests 552 and 833",
    neighbours=_mini_of_micro,
    asks=(_DEVICES, SAMPLES),
)

MINI_ABOVE_ROLLOUT = ErrorText(
    name="verl-mini-above-rollout",
    pattern=pattern(
        r"train_batch_size >= (?:self\.)?config\.actor_rollout_ref\.actor\.ppo_mini_batch_size"
        r"|train_batch_size \(#\) must be >= (?:actor\.)?ppo_mini_batch_size \(#\)",
        "prompts",
        "mini",
    ),
    rule="data.train_batch_size (prompts per rollout) is at least ppo_mini_batch_size (prompts per optimizer step)",
    meaning="an optimizer step may not reach over several rollouts in verl",
    source="open-proof-corpus issue 2",
    neighbours=_prompts_at_least,
    asks=(Ask(name="prompts", question="data.train_batch_size (prompts)"), _MINI_PROMPTS),
)

MINIMAL_BATCH = ErrorText(
    name="verl-minimal-batch",
    pattern=pattern(
        r"real_train_batch_size \(#\) must be divisible by minimal possible batch size \(#\)", "real", "minimal"
    ),
    rule="data.train_batch_size x rollout.n (completions per rollout) is a multiple of the data-parallel size",
    meaning="a rollout cannot be dealt out evenly",
    neighbours=minimal_batch,
    asks=(SAMPLES,),
    counts={"real": "completions_per_rollout", "minimal": "devices"},
)

ENGINE_DEVICES = ErrorText(
    name="verl-engine-devices",
    pattern=pattern(r"rollout world_size: # is not divisible by (?:infer_tp|infer_world_size): #", "world", "tensor"),
    rule="the devices are a multiple of rollout.tensor_model_parallel_size",
    meaning="an inference engine would have no whole set of devices",
    source="volcengine/verl issues 1191 and 1785",
    neighbours=_engine_devices,
)

STEP_OF_REPLICAS = ErrorText(
    name="verl-step-of-replicas",
    versions=">=0.8",
    pattern=pattern(r"mini_batch_size=#,? (?:and )?self\.engine\.get_data_parallel_size\(\)=#", "mini", "replicas"),
    rule="ppo_mini_batch_size (prompts) x rollout.n (completions of an optimizer step) is a multiple of the "
    "data-parallel size",
    meaning="a step cannot be shared out to the replicas; nothing checks it before the first update",
    neighbours=_step,
    asks=(SAMPLES,),
    counts={"replicas": "devices"},
)

MICRO_OF_SHARE = ErrorText(
    name="verl-micro-of-share",
    versions=">=0.8",
    pattern=r"data size must be divisible by micro_batch_size_per_gpu",
    rule="ppo_mini_batch_size x rollout.n / data-parallel size (completions per device) is a multiple of "
    "ppo_micro_batch_size_per_gpu (completions)",
    meaning="the last micro-batch of a device would be smaller; nothing checks it before the first update",
    neighbours=_micro,
    asks=(_MINI_PROMPTS, _MICRO_COMPLETIONS, SAMPLES, _DEVICES),
)

NO_MICRO_BATCH = ErrorText(
    name="verl-no-micro-batch",
    pattern=r"\[(?:actor|critic|reward_model|actor_rollout_ref\.\w{1,20})\] Please set at least one of",
    rule="each of actor, rollout, reference and critic has a micro-batch in completions per device, or dynamic "
    "batches in tokens",
    meaning="verl has no default for it",
    neighbours=lambda n: (
        Fix("set its ..._micro_batch_size_per_gpu (completions per device)"),
        Fix("set use_dynamic_bsz (log_prob_use_dynamic_bsz for the rollout and the reference) to True"),
    ),
)

DEVICES_OF_PARALLEL_SIZES = ErrorText(
    name="verl-devices-of-parallel-sizes",
    pattern=pattern(
        r"n_gpus \(#\) must be divisible by model_parallel_size \(#\) times context_parallel_size \(#\)",
        "devices",
        "tensor",
        "context",
    ),
    rule="the devices are a multiple of tensor x pipeline x context parallelism",
    meaning="a replica of the policy would have no whole set of devices",
    neighbours=_parallel,
)

TOKEN_BUDGET = ErrorText(
    name="verl-token-budget",
    versions=">=0.2",
    pattern=pattern(
        r"max_token_len must be greater than the sequence length"
        r"(?:\. Got max_token_len=#(?: and |, )max_seq_len=#)?",
        "budget",
        "length",
    ),
    rule="ppo_max_token_len_per_gpu (and the log_prob_ ones) x ulysses_sequence_parallel_size is at least the "
    "tokens of a prompt with its response",
    meaning="a micro-batch sized in tokens must hold the longest sequence",
    neighbours=lambda n: setting("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", n["length"]),
    asks=(Ask(name="length", question="data.max_prompt_length + data.max_response_length (tokens)"),),
)

MINI_BATCHES_OF_A_RANK = ErrorText(
    name="verl-mini-batches-of-a-rank",
    versions=">=0.1",
    pattern=pattern(r"AssertionError: # % # != 0", "rows", "mini")
    + r"|assert self\.batch\.batch_size\[0\] % mini_batch_size == 0",
    rule="the completions of a rollout on each replica are a multiple of its mini-batch (ppo_mini_batch_size x "
    "rollout.n / replicas)",
    meaning="the workers cut a rollout into optimizer steps, and the last one is not full: data.train_batch_size "
    "is not a multiple of ppo_mini_batch_size, or rows were dropped on the way",
    source="verl 0.1 to 0.7.1 protocol.py DataProto.make_iterator",
    neighbours=_minis,
)

MICRO_BATCHES_OF_A_RANK = ErrorText(
    name="verl-micro-batches-of-a-rank",
    versions="Megatron and EasyR1's relatives",
    pattern=r"assert tensors\.batch_size\[0\] % batch_size == 0",
    rule="the completions of a mini-batch on each replica are a multiple of ppo_micro_batch_size_per_gpu",
    meaning="a mini-batch does not come out in whole micro-batches",
    source="verl utils/torch_functional.py split_dict_tensor_into_batches",
    neighbours=lambda n: (Fix("a ppo_micro_batch_size_per_gpu that divides a replica's share of a mini-batch"),),
)
