"""Texts that verl prints and no rule is about; see `Adapter.error_texts`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from batchbridge import Fix
from batchbridge.kit import ErrorText, Numbers
from batchbridge.kit.error_texts import divisors, multiples, pattern
from batchbridge_verl.rules.printed import PROMPTS, SAMPLES, minimal_batch, whole

_text = partial(ErrorText, framework="verl", versions=">=0.4", phase="config")


def _one_per_row(n: Numbers) -> Iterator[Fix]:
    yield Fix(f"{n['rows']} values in the column, one per row")
    yield Fix("a batch that the rows fill: drop the dataset's last short batch, or a size that divides its prompts")


def _chunks(n: Numbers) -> Iterator[Fix]:
    rows, parts = n["rows"], n["parts"]
    yield from (Fix(f"{size} rows") for size in multiples(parts, rows))
    if n.get("n"):
        yield from whole(PROMPTS, parts, n, rows // n["n"])
    yield from (Fix(f"{count} workers") for count in divisors(rows, parts))


def _more_groups(n: Numbers) -> Iterator[Fix]:
    yield Fix(
        "algorithm.filter_groups.max_num_gen_batches = 0, no limit", {"algorithm.filter_groups.max_num_gen_batches": 0}
    )
    if n.get("most"):
        yield Fix(
            f"a larger algorithm.filter_groups.max_num_gen_batches than {n['most']}, or a larger data.gen_batch_size"
        )


def _repeated(n: Numbers) -> Iterator[Fix]:
    small, large = sorted((n["one"], n["other"]))
    if small and large % small == 0:
        yield Fix(f"repeat once: one part has {large // small} rows for each row of the other (rollout.n?)")


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
        asks=(SAMPLES,),
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
        name="verl-unknown-key",
        pattern=r"Could not override '[^']{1,200}'(?:.{0,400}? is not in struct)?|Key '[\w.]{1,100}' is not in struct",
        rule="every key of the command stands in this version's configuration, or begins with +",
        meaning="the key is misspelt, or of another version or engine; +KEY=VALUE adds a key, which verl then reads "
        "only where its code asks for it",
        source="hydra ConfigLoaderImpl._apply_overrides_to_config",
        codes=("BB-VERL-003",),
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
        source="hydra ConfigLoaderImpl._apply_overrides_to_config",
        codes=("BB-VERL-008",),
        neighbours=lambda n: (Fix("KEY=VALUE, without +"), Fix("++KEY=VALUE, which adds or overrides")),
    ),
    _text(
        name="verl-no-such-field",
        versions=">=0.6",
        pattern=r"(?:InstantiationException:.{0,300}?|\w{0,40}(?:Actor|Critic)Config\.__init__\(\) )"
        r"got an unexpected keyword argument '\w{1,100}'",
        rule="every key of the actor and of the critic is a field of its dataclass in this version of verl",
        meaning="the key is misspelt, or of another version of verl",
        source="verl utils/config.py omega_conf_to_dataclass",
        codes=("BB-VERL-080",),
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
        neighbours=minimal_batch,
        asks=(SAMPLES,),
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
    _text(
        name="verl-too-few-groups",
        versions="recipe.dapo and main_ppo of 0.3 to 0.6, and forks of them",
        pattern=pattern(
            r"num_gen_batches=# >= max_num_gen_batches=#\.(?: Generated too many\.)?"
            r"|Generated too many\. Please check (?:if )?your data",
            "made",
            "most",
        ),
        rule="filtering leaves data.train_batch_size groups (prompts) in algorithm.filter_groups.max_num_gen_batches "
        "batches of data.gen_batch_size prompts; 0 is no limit",
        meaning="too many groups had equal rewards and were filtered out: all completions of a prompt are right, or "
        "all are wrong. No size is illegal; the data are too easy or too hard, or the reward is never positive",
        phase="first_rollout",
        source="verl recipe/dapo/dapo_ray_trainer.py RayDAPOTrainer.fit",
        neighbours=_more_groups,
    ),
    _text(
        name="verl-virtual-pipeline",
        versions="with Megatron",
        pattern=pattern(
            r"micro-batches in a virtual pipeline stage ?should range in \[PP=# ?, ?M=#\]", "stages", "micro"
        ),
        rule="an optimizer step has at least as many micro-batches on each replica as pipeline stages",
        meaning="a mini-batch gives fewer micro-batches than the pipeline has stages: a smaller "
        "ppo_micro_batch_size_per_gpu or a larger ppo_mini_batch_size gives more",
        phase="optimizer_step",
        source="megatron.core pipeline_parallel/schedules.py",
        neighbours=lambda n: (Fix(f"at least {n['stages']} micro-batches for each replica and optimizer step"),),
    ),
    _text(
        name="verl-other-number-of-rows",
        versions=">=0.1",
        pattern=pattern(
            r"Two tensor dict must have identical batch size\. Got (?:torch\.Size\(\[)?\[?#\]?(?:\]\))? and "
            r"(?:torch\.Size\(\[)?\[?#",
            "one",
            "other",
        ),
        rule="the rollout returns data.train_batch_size x rollout.n rows",
        meaning="two parts of one batch have different numbers of rows: the user's rollout repeats prompts (rollout.n) "
        "and the trainer repeats them again, or the engine returned one completion of each",
        phase="first_rollout",
        source="verl protocol.py union_tensor_dict",
        neighbours=_repeated,
    ),
    _text(
        name="verl-uneven-answers",
        versions=">=0.5",
        pattern=r"agent_loop.{0,600}?ValueError: zip\(\) argument 2 is (?:shorter|longer) than argument 1",
        rule="every request of a rollout has one answer, and every row of a batch one value in each column",
        meaning="no setting alone: the agent loop, the reward manager or the dataset returned another number of items "
        "than it was given",
        phase="first_rollout",
        source="verl experimental/agent_loop/agent_loop.py",
        neighbours=lambda n: (Fix("return one item from your code for each item that it is given"),),
    ),
)
