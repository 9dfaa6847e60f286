"""The PPO script: what it refuses, and what it does silently."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge_open_instruct.meaning import learners
from batchbridge_open_instruct.rules.row import OLD, Facts, Problem, Rule, ppo_rollout, setting


def _ppo_micro(facts: Facts) -> Problem | None:
    mini, micro = facts.native["local_mini_batch_size"], facts.native["per_device_train_batch_size"]
    if mini % micro == 0:
        return None
    return Problem(
        f"local_mini_batch_size {mini} is no multiple of per_device_train_batch_size {micro}",
        ("local_mini_batch_size", "per_device_train_batch_size"),
        tuple(setting("local_mini_batch_size", size) for size in nearest_numbers(mini, multiple_of=micro)),
    )


def _ppo_mini(facts: Facts) -> Problem | None:
    native = facts.native
    local, mini = (
        native["local_rollout_batch_size"] * native["number_samples_per_prompt"],
        native["local_mini_batch_size"],
    )
    if local % mini == 0:
        return None
    return Problem(
        f"local_rollout_batch_size {native['local_rollout_batch_size']} (prompts) x number_samples_per_prompt "
        f"{native['number_samples_per_prompt']} = {local} completions per learner are no multiple of "
        f"local_mini_batch_size {mini}",
        ("local_rollout_batch_size", "number_samples_per_prompt", "local_mini_batch_size"),
        tuple(setting("local_mini_batch_size", size) for size in nearest_numbers(mini, divides=local)),
    )


def _ppo_whiten(facts: Facts) -> Problem | None:
    if not facts.native["whiten_rewards"] or facts.native["local_mini_batch_size"] >= 8:
        return None
    return Problem(
        f"whiten_rewards needs a local_mini_batch_size of at least 8, not {facts.native['local_mini_batch_size']}",
        ("whiten_rewards", "local_mini_batch_size"),
        (setting("local_mini_batch_size", 8), setting("whiten_rewards", False)),
    )


def _ppo_no_steps(facts: Facts) -> Problem | None:
    completions = ppo_rollout(facts.native)
    if facts.native["total_episodes"] >= completions:
        return None
    return Problem(
        f"total_episodes {facts.native['total_episodes']} (completions) do not fill one rollout of {completions}: "
        "nothing is trained",
        ("total_episodes", "local_rollout_batch_size"),
        (setting("total_episodes", completions),),
    )


def _ppo_loss(facts: Facts) -> Problem | None:
    micro = facts.native["per_device_train_batch_size"]
    if learners(facts.native) == 1 and micro == facts.native["local_mini_batch_size"]:
        return None
    return Problem(
        f"the loss is the mean over the tokens of each micro-batch of {micro}, averaged over micro-batches and "
        "learners: the gradient depends on the split and on the world size",
        ("per_device_train_batch_size", "actor_num_gpus_per_node"),
        (setting("per_device_train_batch_size", facts.native["local_mini_batch_size"]),),
    )


def _ppo_whitening(facts: Facts) -> Problem | None:
    if learners(facts.native) == 1:
        return None
    message = "advantages are whitened over each learner's own completions: they depend on the world size"
    return Problem(message, ("actor_num_gpus_per_node", "local_rollout_batch_size"))


def _ppo_mini_batches(facts: Facts) -> Problem | None:
    if "num_mini_batches" not in facts.given:
        return None
    message = "num_mini_batches is overwritten: local_rollout_batch_size and local_mini_batch_size give it"
    return Problem(message, ("num_mini_batches",), (Fix("remove num_mini_batches", {"num_mini_batches": None}),))


PPO_REFUSED: tuple[Rule, ...] = (
    Rule("BB-OI-030", "error", "construction", _ppo_micro, OLD, "calculate_runtime_args, exact_div", "ValueError"),
    Rule(
        "BB-OI-031",
        "error",
        "construction",
        _ppo_mini,
        OLD,
        "calculate_runtime_args, exact_div",
        "ValueError",
        versions=">=2025.11.3",
    ),
    Rule(
        "BB-OI-032",
        "error",
        "construction",
        _ppo_whiten,
        OLD,
        "calculate_runtime_args",
        "AssertionError: Per-rank minibatch size",
    ),
    Rule("BB-OI-033", "warning", "optimizer_step", _ppo_mini, OLD, "not validated in 9c2d44bec", versions="<2025.11.3"),
    Rule("BB-OI-034", "error", "never", _ppo_no_steps, OLD, "calculate_runtime_args", "0 training steps"),
)


PPO_SILENT: tuple[Rule, ...] = (
    Rule("BB-OI-062", "warning", "never", _ppo_loss, OLD, "ppo_vllm_thread_ray_gtrl.py, masked_mean", defect=True),
    Rule(
        "BB-OI-063", "warning", "never", _ppo_whitening, OLD, "ppo_vllm_thread_ray_gtrl.py, masked_whiten", defect=True
    ),
    Rule("BB-OI-064", "warning", "never", _ppo_mini_batches, OLD, "calculate_runtime_args", versions=">=2025.11.3"),
)
