"""The real behaviour of Open-Instruct's scripts, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import Behaviour
from batchbridge_open_instruct.rules import defects
from batchbridge_open_instruct.rules.row import OpenInstructFacts
from batchbridge_open_instruct.settings import GRPO, NEWEST, PPO, SCRIPT


def behaviour(facts: OpenInstructFacts) -> Behaviour:
    """The behaviour of the script with these settings in that checkout."""
    return _ppo(facts) if facts.native[SCRIPT] == PPO else _grpo(facts)


def _grpo(facts: OpenInstructFacts) -> Behaviour:
    native = facts.native
    if facts.first:
        return _first(facts)
    constant = native["loss_denominator"] != "token"
    shorter = ", or the rollout's tokens over the replicas where that is less"
    return Behaviour(
        order="torch.randperm with seed + epoch; prompts join a rollout in the order in which vLLM finishes them",
        membership=f"{_packed(native, shorter, 'replicas')}; every pass has the same order",
        denominator_scope="optimizer_step",
        denominator_formula=f"1 / {native['loss_denominator']}" if constant else "1 / T of the step, over all ranks",
        lr_tick="after every rollout" if native[SCRIPT] == GRPO else "after every optimizer step",
        resume="the position of the prompt stream is saved; rollouts in flight are lost",
        defects=defects(facts),
        undecided=(
            "which prompts a rollout has: results are taken as they finish",
            "which completions an optimizer step has: packing, dropped rows, and an unseeded permutation decide",
            *_weights(native, facts.checkout),
        ),
        source="open-instruct data_loader.py, rl_utils.py, grpo_fast.py, olmo_core_train_modules.py, e6c3044aa",
    )


def _packed(native: Mapping[str, Any], shorter: str, ranks: str) -> str:
    """The completions of a step, in words. shorter: where rows are. ranks: those that see different data."""
    cut, rest = "max(ceil(m / num_mini_batches - 0.5), 1)", "micro-batches left over are dropped"
    if native[SCRIPT] == GRPO:
        cut, rest = "ceil(m / num_mini_batches)", "the last group is smaller"
    return (
        f"completions are packed greedily in that order into rows of at most pack_length tokens{shorter}; the rows "
        f"beyond a multiple of the {ranks} are dropped; each rank takes a contiguous block of rows, permutes it once, "
        f"cuts it into m micro-batches of {native['per_device_train_batch_size']} rows, and steps after every {cut} of "
        f"them; {rest}"
    )


def _weights(native: Mapping[str, Any], checkout: str) -> tuple[str, ...]:
    """Defects in the weights that generate. Source: grpo_fast.run_training, vllm_utils.add_request,
    data_loader.accumulate_inference_batches (run)."""
    if checkout != NEWEST:
        return ()
    sent = "the first training step's are never sent, so the second rollout has those of the start"
    if native[SCRIPT] == GRPO:
        sent = "a training step begins when the weights of the one before are sent"
    fewer = f"those after k training steps or up to {native['async_steps']} fewer, by timing"
    return (f"which weights generate rollout k: {fewer}; {sent}",)


def _first(facts: OpenInstructFacts) -> Behaviour:
    return Behaviour(
        order=(
            "numpy's default_rng(seed) shuffles each epoch, whose remainder is dropped; prompts join a rollout in the "
            "order in which vLLM finishes them"
        ),
        membership=_packed(facts.native, "", "learners"),
        denominator_scope="micro_batch",
        denominator_formula="1 / (W k T_m): over W learners and k micro-batches, the mean of means over tokens T_m",
        lr_tick="after every optimizer step",
        resume="the position of the prompt iterator is saved",
        defects=defects(facts),
        undecided=(
            "which prompts a rollout has: results are taken as they finish",
            "which completions an optimizer step has: packing, dropped rows, and a permutation decide",
        ),
        source="open-instruct grpo_fast.py, fc22674da",
    )


def _ppo(facts: OpenInstructFacts) -> Behaviour:
    return Behaviour(
        order="numpy's default_rng(seed) shuffles each epoch; an epoch's remainder of prompts is dropped",
        membership=(
            "each rank takes a contiguous block of a rollout's prompts, permutes its completions in every pass with "
            f"numpy's global random numbers, and steps after every {facts.native['local_mini_batch_size']} of them"
        ),
        denominator_scope="micro_batch",
        denominator_formula="1 / (W k T_m): the mean over W devices and k micro-batches of means over their tokens T_m",
        lr_tick="after every optimizer step",
        resume="not read",
        defects=defects(facts),
        undecided=("which completions of a rank meet in a step: numpy's global random numbers decide",),
        source="open-instruct ppo_vllm_thread_ray_gtrl.py, 9c2d44bec and the parent of bac939310",
    )
