"""Error texts of verl; see `Adapter.error_texts`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import devices, divisors, multiples, pattern, setting, smallest_factor

_PROMPTS = "data.train_batch_size"
_MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
_MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
_DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")
_SAMPLES = Ask(name="n", question="rollout.n (completions per prompt)")
_MINI_PROMPTS = Ask(name="mini", question="ppo_mini_batch_size (prompts)")
_MICRO_COMPLETIONS = Ask(name="micro", question="ppo_micro_batch_size_per_gpu (completions)")
# Most are those of `validate_config`, in every version that is read.
_text = partial(ErrorText, framework="verl", versions=">=0.4", phase="config")


def _whole(key: str, unit: int, n: Numbers, prompts: int) -> Iterator[Fix]:
    """The numbers of prompts nearest to `prompts` whose completions are a multiple of `unit`."""
    return setting(key, *multiples(smallest_factor(unit, n["n"]), prompts))


def _step(n: Numbers) -> Iterator[Fix]:
    """Ways out for an optimizer step: `mini` is in completions here: prompts x rollout.n."""
    return _whole(_MINI, n["replicas"], n, n["mini"] // n["n"])


def _micro(n: Numbers) -> Iterator[Fix]:
    share, rest = divmod(n["mini"] * n["n"], n["devices"])
    if share and not rest:
        yield from setting(_MICRO, *divisors(share, n["micro"]))
    yield from _whole(_MINI, n["micro"] * n["devices"], n, n["mini"])


def _one_per_row(n: Numbers) -> Iterator[Fix]:
    yield Fix(f"{n['rows']} values in the column, one per row")
    yield Fix("a batch that the rows fill: drop the dataset's last short batch, or a size that divides its prompts")


def _parallel(n: Numbers) -> Iterator[Fix]:
    return (Fix(f"{count} devices") for count in multiples(n["tensor"] * n["context"], n["devices"]))


def _chunks(n: Numbers) -> Iterator[Fix]:
    rows, parts = n["rows"], n["parts"]
    yield from (Fix(f"{size} rows") for size in multiples(parts, rows))
    if n.get("n"):
        yield from _whole(_PROMPTS, parts, n, rows // n["n"])
    yield from (Fix(f"{count} workers") for count in divisors(rows, parts))


def _mini_of_micro(n: Numbers) -> Iterator[Fix]:
    mini, micro = n["mini"], n["micro"]
    yield from setting(_MICRO, *(divisors(mini, micro) if mini else []))
    if "devices" in n and "n" in n:
        yield from _whole(_MINI, micro * n["devices"], n, mini * n["devices"] // n["n"])


def _minimal_batch(n: Numbers) -> Iterator[Fix]:
    yield from (Fix(f"train_batch_size x n = {size} (completions)") for size in multiples(n["minimal"], n["real"]))
    if n.get("n"):
        yield from _whole(_PROMPTS, n["minimal"], n, n["real"] // n["n"])


def _engine_devices(n: Numbers) -> Iterator[Fix]:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    yield from setting(key, *(size for size in divisors(n["world"], n["tensor"]) if size <= n["world"]))
    yield from devices(*multiples(n["tensor"], n["world"]))


def _prompts_at_least(n: Numbers) -> Iterator[Fix]:
    yield from setting(_PROMPTS, n["mini"])
    yield from setting(_MINI, *divisors(n["prompts"], n["prompts"]))


TEXTS: tuple[ErrorText, ...] = (
    _text(
        name="verl-equal-chunks",
        versions="all, and its relatives (EasyR1, TinyZero, Logic-RL)",
        pattern=pattern(r"only support equal chunk\. Got size of DataProto # and chunk #", "rows", "parts"),
        rule="the rows of a batch (prompts x rollout.n completions, or what is left of them) are a multiple of the "
        "workers that share them (devices, or agent-loop workers)",
        meaning="the batch cannot be dealt out evenly; the run dies after model load and, where it "
        "validates first, after the whole validation",
        phase="first_rollout",
        source="volcengine/verl issues 473, 606 and 4152; Jiayi-Pan/TinyZero issue 47",
        neighbours=_chunks,
        asks=(_SAMPLES,),
    ),
    _text(
        name="verl-mini-batch-zero",
        versions="<0.8",
        pattern=pattern(r"ppo_mini_batch_size # should be larger than 0 after normalization", "mini"),
        rule="ppo_mini_batch_size (prompts) x rollout.n is at least the data-parallel size",
        meaning="the mini-batch is shared out to the devices with integer division, and nothing is left for each",
        phase="worker_start",
        source="PRIME-RL/TTRL issue 43; verl 0.4.0 to 0.7.1 fsdp_workers.py",
        neighbours=lambda n: setting(_MINI, -(-n["devices"] // n["n"])),
        asks=(_DEVICES, _SAMPLES),
    ),
    _text(
        name="verl-mini-of-micro",
        versions="<0.8",
        pattern=pattern(
            r"normalized ppo_mini_batch_size #(?: should be|:? must be)? divisible by ppo_micro_batch_size_per_gpu #",
            "mini",
            "micro",
        ),
        rule="ppo_mini_batch_size x rollout.n / data-parallel size (completions per device) is a multiple of "
        "ppo_micro_batch_size_per_gpu (completions)",
        meaning="the last micro-batch would be smaller; before verl pull request 833 it was not checked, and training "
        "gave NaN",
        phase="worker_start",
        source="verl 0.4.0 to 0.7.1 fsdp_workers.py; volcengine/verl pull requests 552 and 833",
        neighbours=_mini_of_micro,
        asks=(_DEVICES, _SAMPLES),
    ),
    _text(
        name="verl-mini-above-rollout",
        pattern=pattern(
            r"train_batch_size >= (?:self\.)?config\.actor_rollout_ref\.actor\.ppo_mini_batch_size"
            r"|train_batch_size \(#\) must be >= (?:actor\.)?ppo_mini_batch_size \(#\)",
            "prompts",
            "mini",
        ),
        rule="data.train_batch_size (prompts per rollout) is at least ppo_mini_batch_size (prompts per optimizer step)",
        meaning="an optimizer step may not reach over several rollouts in verl",
        source="open-proof-corpus issue 2; verl validate_config (an assertion before 0.6.0, then a ValueError)",
        neighbours=_prompts_at_least,
        asks=(Ask(name="prompts", question="data.train_batch_size (prompts)"), _MINI_PROMPTS),
    ),
    _text(
        name="verl-minimal-batch",
        pattern=pattern(
            r"real_train_batch_size \(#\) must be divisible by minimal possible batch size \(#\)", "real", "minimal"
        ),
        rule="data.train_batch_size x rollout.n (completions per rollout) is a multiple of the data-parallel size",
        meaning="a rollout cannot be dealt out evenly",
        source="verl validate_config",
        neighbours=_minimal_batch,
        asks=(_SAMPLES,),
    ),
    _text(
        name="verl-engine-devices",
        pattern=pattern(
            r"rollout world_size: # is not divisible by (?:infer_tp|infer_world_size): #", "world", "tensor"
        ),
        rule="the devices are a multiple of rollout.tensor_model_parallel_size",
        meaning="an inference engine would have no whole set of devices",
        phase="worker_start",
        source="volcengine/verl issues 1191 and 1785",
        neighbours=_engine_devices,
    ),
    _text(
        name="verl-micro-batch-chunks",
        versions="with the HF rollout",
        pattern=pattern(r"len\(batch_lst\) \(#\) != chunks \(#\)", "rows", "parts"),
        rule="the rows of a device are a multiple of the rollout's micro-batches",
        meaning="the HF rollout cuts its prompts into chunks that do not come out even",
        phase="first_rollout",
        source="volcengine/verl issue 3933",
        neighbours=lambda n: (Fix(f"{size} chunks") for size in divisors(n["rows"], n["parts"])),
    ),
    _text(
        name="verl-step-of-replicas",
        versions=">=0.8",
        pattern=pattern(r"mini_batch_size=#,? (?:and )?self\.engine\.get_data_parallel_size\(\)=#", "mini", "replicas"),
        rule="ppo_mini_batch_size (prompts) x rollout.n (completions of an optimizer step) is a multiple of the "
        "data-parallel size",
        meaning="a step cannot be shared out to the replicas; nothing checks it before the first update",
        phase="optimizer_step",
        source="verl 0.9.1 engine_workers.py:267",
        neighbours=_step,
        asks=(_SAMPLES,),
    ),
    _text(
        name="verl-micro-of-share",
        versions=">=0.8",
        pattern=r"data size must be divisible by micro_batch_size_per_gpu",
        rule="ppo_mini_batch_size x rollout.n / data-parallel size (completions per device) is a multiple of "
        "ppo_micro_batch_size_per_gpu (completions)",
        meaning="the last micro-batch of a device would be smaller; nothing checks it before the first update",
        phase="optimizer_step",
        source="verl 0.9.1 workers/engine/utils.py:124",
        neighbours=_micro,
        asks=(_MINI_PROMPTS, _MICRO_COMPLETIONS, _SAMPLES, _DEVICES),
    ),
    _text(
        name="verl-no-micro-batch",
        pattern=r"\[(?:actor|critic|reward_model|actor_rollout_ref\.\w{1,20})\] Please set at least one of",
        rule="each of actor, rollout, reference and critic has a micro-batch in completions per device, or dynamic "
        "batches in tokens",
        meaning="verl has no default for it",
        source="verl 0.4.0 to 0.9.1 validate_config and the configuration's dataclasses",
        neighbours=lambda n: (
            Fix("set its ..._micro_batch_size_per_gpu (completions per device)"),
            Fix("set use_dynamic_bsz (log_prob_use_dynamic_bsz for the rollout and the reference) to True"),
        ),
    ),
    _text(
        name="verl-devices-of-parallel-sizes",
        pattern=pattern(
            r"n_gpus \(#\) must be divisible by model_parallel_size \(#\) times context_parallel_size \(#\)",
            "devices",
            "tensor",
            "context",
        ),
        rule="the devices are a multiple of tensor x pipeline x context parallelism",
        meaning="a replica of the policy would have no whole set of devices",
        source="verl validate_config, Megatron",
        neighbours=_parallel,
    ),
    _text(
        name="verl-unknown-key",
        pattern=r"Could not override '[^']{1,200}'(?:.{0,400}? is not in struct)?|Key '[\w.]{1,100}' is not in struct",
        rule="every key of the command stands in this version's configuration, or begins with +",
        meaning="the key is misspelt, or of another version or engine; +KEY=VALUE adds a key, which verl then reads "
        "only where its code asks for it",
        source="hydra ConfigLoaderImpl._apply_overrides_to_config, BB-VERL-003",
        neighbours=lambda n: (
            Fix("the nearest key: batchbridge check FILE names it"),
            Fix("+KEY=VALUE, if something of yours reads it"),
        ),
    ),
    _text(
        name="verl-present-key",
        pattern=r"Could not append to config\. An item is already at",
        rule="a key that begins with + is not in the configuration yet",
        meaning="this version has the key itself, so that nothing need be added",
        source="hydra ConfigLoaderImpl._apply_overrides_to_config, BB-VERL-008",
        neighbours=lambda n: (Fix("KEY=VALUE, without +"), Fix("++KEY=VALUE, which adds or overrides")),
    ),
    _text(
        name="verl-no-such-field",
        versions=">=0.6",
        pattern=r"(?:InstantiationException:.{0,300}?|\w{0,40}(?:Actor|Critic)Config\.__init__\(\) )"
        r"got an unexpected keyword argument '\w{1,100}'",
        rule="every key of the actor and of the critic is a field of its dataclass in this version of verl",
        meaning="the key is misspelt, or of another version of verl",
        source="verl utils/config.py omega_conf_to_dataclass, BB-VERL-080",
        neighbours=lambda n: (Fix("leave the key out, or the nearest key: batchbridge check FILE names it"),),
    ),
    _text(
        name="verl-total-devices",
        versions="before 0.4, and forks of it",
        pattern=pattern(r"real_train_batch_size \(#\) must be divisible by total n_gpus \(#\)", "real", "minimal"),
        rule="data.train_batch_size x rollout.n (completions) is a multiple of all devices",
        meaning="not every device would get the same number of completions. Later versions ask for a multiple of the "
        "data-parallel size, or less",
        source="verl 0.2 to 0.3 RayPPOTrainer._validate_config; kept by forks",
        neighbours=_minimal_batch,
        asks=(_SAMPLES,),
    ),
    _text(
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
        phase="optimizer_step",
        source="verl utils/seqlen_balancing.py rearrange_micro_batches, BB-VERL-056",
        neighbours=lambda n: setting("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", n["length"]),
        asks=(Ask(name="length", question="data.max_prompt_length + data.max_response_length (tokens)"),),
    ),
    _text(
        name="verl-rows-of-a-column",
        versions=">=0.1",
        pattern=pattern(r"key [\w.]{1,100} length # is not equal to batch size #", "column", "rows"),
        rule="each column of a DataProto has one value for each row of the batch",
        meaning="no setting alone: code of the dataset, the rollout or the reward gave one column another number of "
        "rows than the tensors have, often a padded or a dropped last batch",
        phase="first_rollout",
        source="verl protocol.py DataProto.check_consistency; PRIME-RL/SimpleVLA-RL issue 32",
        neighbours=_one_per_row,
    ),
)
