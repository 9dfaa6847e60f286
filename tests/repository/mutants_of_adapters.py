"""Rows of `mutants` for the adapters, by the session whose tests find them.

Those of sessions of checkouts (`easyr1`, `open_instruct`) run by name and at night.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Rows = Sequence[tuple[str, str, str, str]]

_TRL, _VERL, _ORL = "tests/adapters/trl/native", "tests/adapters/verl", "tests/adapters/openrlhf"
_SWIFT = "tests/adapters/ms_swift/native"
_EZR, _OI = "tests/adapters/easyr1", "tests/adapters/open_instruct"
_SAME = f"{_TRL}/test_measured.py -k same_runs_go_through"
_SEEN = f"{_TRL}/test_verify_and_observe.py"

TRL: Mapping[str, Rows] = {
    "trl": (
        (
            "copied_steps",
            "((ended.cumsum(1) - ended.int()) == 0).int()",
            "(ended.cumsum(1) == 0).int()",
            f"{_TRL}/test_copies.py",
        ),
        (
            "copied_steps",
            "(prompts[row // each], (first",
            "(prompts[0], (first",
            f"{_TRL}/test_copies.py",
        ),
        (
            "engine",
            "= divisor * normaliser.step_factor() * ranks",
            "= 1.5 * divisor * normaliser.step_factor() * ranks",
            _SAME,
        ),
        (
            "runtime",
            'if request.mode == "enforce":',
            'if request.mode != "enforce":',
            f"{_SEEN} -k enforced_run_trains",
        ),
        (
            "rows",
            "return row[len(row) - width(position) :] if kind",
            "return row[: width(position)] if kind",
            f"{_TRL}/test_exchange.py",
        ),
        (
            "shares",
            "for index in self._rollouts if index < first",
            "for index in self._rollouts if index <= first",
            f"{_SEEN} -k enforced_run_trains",
        ),
        ("exchange", "if source == rank:", "if source != rank:", f"{_TRL}/test_exchange.py"),
        (
            "loss_terms",
            "scale = micro.per_token * tokens * turns",
            "scale = 1.5 * micro.per_token * tokens * turns",
            f"{_TRL}/test_terms.py -k bonus_is_the_mean",
        ),
        (
            "images",
            'has = counts["num_images"][row] > 0',
            'has = counts["num_images"][row] > 1',
            f"{_TRL}/test_images.py -k every_layout",
        ),
        (
            "padding_free",
            "if not off <= TOLERANCE.get(str(kind), ROUGH):",
            "if off < 0:",
            f"{_TRL}/test_padding_free.py -k sees_something_else_is_seen",
        ),
        (
            "watching",
            "self._tap.returned(loss, times=terms.times, beside=beside)",
            "pass",
            "tests/adapters/trl/native/test_measured.py -k tampered_with",
        ),
        (
            "loss_terms",
            "value = -coefficient * (",
            "value = coefficient * (",
            "tests/adapters/trl/native/test_terms.py -k adaptive_bonus_follows",
        ),
        (
            "watching",
            "scale=accelerator.num_processes * scaler)",
            "scale=1.5 * accelerator.num_processes * scaler)",
            _SAME,
        ),
        (
            "advantages",
            "if self.allowed or torch.isinf(rewards).any():",
            "if True:",
            f"{_TRL}/test_producer.py",
        ),
        (
            "recording",
            "self._index = state.global_step - 1",
            "self._index = state.global_step",
            f"{_SEEN} -k ledger_says",
        ),
        (
            "scoring",
            "result[rows, :width] = scored",
            "result[rows.flip(0), :width] = scored",
            f"{_TRL}/test_token_budget.py -k specs_own_budgets",
        ),
        (
            "checkpoints",
            "sorted(stored.keys() & set(resumed.position.live_rollouts))",
            "sorted(stored.keys() - stored.keys())",
            f"{_TRL}/test_resume.py -k killed_run_goes_on_as",
        ),
        (
            "finished",
            'any(folder.glob("optimizer*"))',
            "True",
            f"{_TRL}/test_restart.py -k lost_a_file",
        ),
        (
            "sharding",
            "len(unit()._modules) == 1",
            "len(unit()._modules) == 0",
            f"{_TRL}/test_fsdp.py -k unit_of_its_own",
        ),
        (
            "carriers",
            '("ppo", "sequence_mean"): ("grpo",)',
            '("ppo", "sequence_mean"): ("dapo",)',
            f"{_TRL}/test_measured.py -k passes_the_probe",
        ),
        ("metrics", "value = sum(added)", "value = max(added)", f"{_TRL}/test_terms.py -k adaptive_bonus_follows"),
        ("observe", "(first + row) % group", "(first + row) // group", f"{_SEEN} -k observe_identifies"),
        ("own_methods", "if not changed:", "if True:", f"{_TRL}/test_own_methods.py -k changes_beside"),
    ),
    "core": (
        (
            "epochs",
            "rows = prompts * sizes.generations * repeats",
            "rows = prompts * repeats",
            "tests/adapters/trl/test_history_trl.py -k recorded",
        ),
        ("sampling", "own.seed = seed", "own.seed = seed + 1", "tests/adapters/trl/test_sampling_trl.py"),
        (
            "behaviour",
            'TorchGenerator(facts.native["seed"] + rank)',
            'TorchGenerator(facts.native["seed"] + rank + 1)',
            "tests/adapters/trl/test_history_trl.py -k recorded",
        ),
    ),
    "ms_swift": (
        (
            "swift_rows",
            'advantages=micro["advantages"][:, None].expand(mask.shape)',
            'advantages=1.5 * micro["advantages"][:, None].expand(mask.shape)',
            f"{_SWIFT}/test_ms_swift.py -k oracles_gradient -W ignore",
        ),
        (
            "swift_rows",
            "first = int(trained.int().argmax())",
            "first = int(trained.int().argmax()) + 1",
            f"{_SWIFT}/test_observed_ms_swift.py -k named_with_its_reward -W ignore",
        ),
        (
            "swift_steps",
            "start += rows",
            "start += 0",
            f"{_SWIFT}/test_observed_ms_swift.py -k named_with_its_reward -W ignore",
        ),
        (
            "swift_steps",
            "advantages=batch.advantages.clone()",
            "advantages=1.5 * batch.advantages.clone()",
            f"{_SWIFT}/test_observed_ms_swift.py -k gradient_of_the_native -W ignore",
        ),
    ),
    "unsloth": (
        (
            "unsloth_steps",
            "*given[:_UPSTREAM], 1.0, *given[_UPSTREAM + 1 :]",
            "*given[:_UPSTREAM], 1.5, *given[_UPSTREAM + 1 :]",
            "tests/adapters/unsloth/native/test_wrapped.py -k every_step_has_the_oracles -W ignore",
        ),
        (
            "unsloth_steps",
            "(width - tokens - padding)[:, None]",
            "(width - tokens)[:, None]",
            "tests/adapters/unsloth/native/test_wrapped.py -k every_step_has_the_oracles -W ignore",
        ),
    ),
}
VERL: Mapping[str, Rows] = {
    "core": (
        (
            "driver",
            '"mini_batch_size": len(places),',
            '"mini_batch_size": len(places) + 1,',
            f"{_VERL}/test_runtime_verl.py -k one_planned_step",
        ),
        (
            "trainer_v0",
            "{row: int(lengths[arrived[row]]) for row",
            "{row: int(lengths[0]) for row",
            f"{_VERL}/test_trainers_verl.py",
        ),
        (
            "trainer_v1",
            "return int(self._trainer.global_steps) - 1",
            "return int(self._trainer.global_steps)",
            f"{_VERL}/test_trainers_verl.py",
        ),
        (
            "runtime",
            "same = cut_of(asked) ==",
            "same = True or cut_of(asked) ==",
            f"{_VERL}/test_runtime_verl.py -k budget",
        ),
        (
            "candidates_v1",
            "self._next = _number(chosen[-1]) + 1",
            "self._next = _number(chosen[-1])",
            f"{_VERL}/test_runtime_verl.py -k lowest_numbers",
        ),
        ("sharing", "int(value) > 1", "int(value) > 9", f"{_VERL}/test_runtime_verl.py -k shared_prompts"),
        (
            "apart",
            "return min(self._first if done is None",
            "return max(self._first if done is None",
            f"{_VERL}/test_apart_verl.py",
        ),
        (
            "queued",
            "[policies[held] for held in begun]",
            "[policies[held] + 1 for held in begun]",
            f"{_VERL}/test_queued_verl.py",
        ),
        (
            "sampling",
            'int(seed) + int(columns["session_id"])',
            "int(seed)",
            f"{_VERL}/test_runtime_verl.py -k samples_number",
        ),
        (
            "attaching",
            "ONE_STEP_OFF: is_one_step_off(trainer)",
            "ONE_STEP_OFF: False",
            f"{_VERL}/test_queued_verl.py -k depends_on_its_code",
        ),
        (
            "observe",
            "(np.arange(len(prompts)) % group)",
            "(np.arange(len(prompts)) // group)",
            f"{_VERL}/test_trainers_verl.py",
        ),
        ("behaviour", "rank * block + cut + at", "cut + at", f"{_VERL}/test_behaviour_verl.py"),
        (
            "critic",
            "size, replicas = run[_MINI] * run[GROUP],",
            "size, replicas = run[_MINI],",
            f"{_VERL}/test_runtime_verl.py -k critics_step_takes",
        ),
    ),
    "verl": (
        (
            "engine",
            "[*self._objections, *self._watch.look(self._rows, self._size)]",
            "self._watch.look(self._rows, self._size)",
            f"{_VERL}/native/test_corrections_verl.py -k not_the_samplers",
        ),
        (
            "columns",
            '"response_mask", "advantages", "old_log_probs"',
            '"response_mask", "old_log_probs"',
            f"{_VERL}/native/test_gradients_verl.py -k hand_in",
        ),
        (
            "critic_engine",
            "return 0.5 * torch.max(",
            "return 0.75 * torch.max(",
            f"{_VERL}/native/test_critic_verl.py -k hand_in",
        ),
        (
            "advantages",
            "own.var(correction=1)",
            "own.var(correction=0)",
            f"{_VERL}/native/test_critic_verl.py -k own_gae",
        ),
        (
            "shared_prompts",
            "if not off <= TOLERANCE.get(str(kind), ROUGH):",
            "if off < 0:",
            f"{_VERL}/native/test_shared_prompts_verl.py -k sees_something_else",
        ),
        (
            "other_engines",
            "return seen or replica not in replicas_with_loss",
            "return True",
            f"{_VERL}/native/test_other_engine_verl.py -k pipelines_stages",
        ),
        (
            "distillation",
            "distance = current - self.logprobs",
            "distance = 1.5 * current - self.logprobs",
            f"{_VERL}/native/test_distillation_verl.py",
        ),
        (
            "watching",
            "self._tap.returned(result[0], beside=self._bonus(options))",
            "pass",
            f"{_VERL}/native/test_gradients_verl.py -k hand_in",
        ),
        (
            "watching",
            "scale=self.ranks * self._loss_scale)",
            "scale=1.5 * self.ranks * self._loss_scale)",
            f"{_VERL}/native/test_distillation_verl.py",
        ),
        (
            "probe",
            "logprobs.new_zeros(PROMPT_TOKENS - 1), logprobs, logprobs.new_zeros(1)",
            "logprobs.new_zeros(PROMPT_TOKENS), logprobs",
            f"{_VERL}/native/test_distillation_verl.py",
        ),
    ),
    "verl_071": (
        (
            "legacy",
            "* self.ranks.replicas / natively)",
            "* 1.5 * self.ranks.replicas / natively)",
            f"{_VERL}/native/test_gradients_verl.py -k every_step_has_the_oracles",
        ),
        (
            "legacy",
            'if counted.aggregation == "sequence_mean":',
            "if False:",
            f"{_VERL}/native/test_gradients_verl.py -k every_step_has_the_oracles",
        ),
    ),
}
OPENRLHF: Mapping[str, Rows] = {
    "core": (
        ("ahead", "self._sent.add(version)", "pass", f"{_ORL}/test_asynchronous_openrlhf.py"),
        (
            "driver",
            "range(-len(samples) % math.lcm(*sizes))",
            "range(0)",
            f"{_ORL}/test_runtime_openrlhf.py -k forward_micro_batches",
        ),
        (
            "candidates",
            'return {"next_candidate": self._next_candidate}',
            'return {"next_candidate": self._next_candidate + 1}',
            f"{_ORL}/test_runtime_openrlhf.py -k remembers_the_next",
        ),
        ("weights", "if began not in sent:", "if began in ():", f"{_ORL}/test_asynchronous_openrlhf.py"),
        ("asynchronous", "0 if steps == 0 else weights.UNKNOWN", "0", f"{_ORL}/test_asynchronous_openrlhf.py"),
        (
            "sampling",
            "sampling_params.seed += 1",
            "sampling_params.seed += 2",
            f"{_ORL}/test_runtime_openrlhf.py -k next_seed",
        ),
        ("turns", "self.all_tokens - self.prompt_tokens", "self.all_tokens", f"{_ORL}/test_rings_openrlhf.py"),
        ("membership", "if want != have:", "if False:", f"{_ORL}/test_membership_openrlhf.py"),
        (
            "rings",
            "return self.rank // self.size",
            "return self.rank % self.size",
            f"{_ORL}/test_rings_openrlhf.py",
        ),
        (
            "critic",
            '"loss.token_level_loss": True}',
            '"loss.token_level_loss": False}',
            f"{_ORL}/test_runtime_openrlhf.py -k critics",
        ),
        (
            "runtime",
            "        return plan.total_rollouts\n",
            "        return plan.total_rollouts + 1\n",
            f"{_ORL}/test_runtime_openrlhf.py -k ticks",
        ),
        (
            "deepspeed",
            "if stage not in (1, 2):",
            "if stage not in (2,):",
            f"{_ORL}/test_rules_openrlhf.py tests/docs/test_fact_tables.py {_ORL}/test_config_openrlhf.py",
        ),
        (
            "runtime",
            '"order.last_optimizer_step": "short"',
            '"order.last_optimizer_step": "drop"',
            f"{_ORL}/test_leftover_default_openrlhf.py",
        ),
        (
            "behaviour",
            "counted * length if by_sequence else total",
            "length if by_sequence else total",
            f"{_ORL}/test_config_openrlhf.py {_ORL}/test_contract_openrlhf.py",
        ),
    ),
    "openrlhf": (
        (
            "engine",
            "[normaliser.tokens / gas]",
            "[1.5 * normaliser.tokens / gas]",
            f"{_ORL}/native/test_leftovers_openrlhf.py -k shorter_step",
        ),
        (
            "inputs",
            "if SENT not in item.info:",
            "if item.info:",
            f"{_ORL}/native/test_gradients_openrlhf.py -k tampered_with",
        ),
        (
            "critic_engine",
            "return 0.5 * error",
            "return 0.75 * error",
            f"{_ORL}/native/test_critic_openrlhf.py -k nobody_tampers",
        ),
        (
            "watching",
            "self._tap.returned(loss, beside=self._beside())",
            "pass",
            f"{_ORL}/native/test_gradients_openrlhf.py -k tampered_with",
        ),
        (
            "watching",
            "scale=self.ranks * self._loss_scale * self._divided_later",
            "scale=1.5 * self.ranks * self._loss_scale * self._divided_later",
            f"{_ORL}/native/test_leftovers_openrlhf.py -k shorter_step",
        ),
        (
            "images",
            "return torch.stack(alike).all() if alike else True",
            "return True",
            f"{_ORL}/native/test_images_openrlhf.py -k shown_another_image",
        ),
        (
            "probe",
            "            advantages=given.advantages.clone(),",
            "            advantages=0.5 * given.advantages,",
            f"{_ORL}/native/test_leftovers_openrlhf.py -k shorter_step",
        ),
        (
            "observe",
            "self._rollout += bool(found[0])",
            "self._rollout += 2 * bool(found[0])",
            f"{_ORL}/native/test_fits_openrlhf.py -k observed_run",
        ),
    ),
}
EASYR1: Mapping[str, Rows] = {
    "core": (
        ("clock", "num_cycles=0.5", "num_cycles=0.25", f"{_EZR}/upstream_values"),
        (
            "behaviour",
            "Fraction(sum(local), total * len(local) * length)",
            "Fraction(1, len(local) * length)",
            f"{_EZR}/upstream_values",
        ),
        ("sampling", "first + sample for first in seeds", "first for first in seeds", f"{_EZR}/test_runtime_easyr1.py"),
        ("trainer", "self.next = numbers.stop", "self.next = numbers.stop + 1", f"{_EZR}/test_runtime_easyr1.py"),
        (
            "runtime",
            'for place, config in (("actor", worker.actor), ("ref", worker.ref)):',
            'for place, config in (("actor", worker.actor),):',
            f"{_EZR}/test_runtime_easyr1.py",
        ),
        ("images", "len(kept) != len(data)", "len(kept) > len(data)", f"{_EZR}/test_images_easyr1.py"),
        ("enforced", '"loss.policy.count_empty": also_off,', "", f"{_EZR}/test_enforced_easyr1.py"),
    ),
    "trl": (
        (
            "trainer",
            "for step in driver.steps_of(rows.index):",
            "for step in driver.steps_of(rows.index)[:1]:",
            f"{_EZR}/upstream_values/native/test_trainer_easyr1.py",
        ),
        (
            "inputs",
            '"response_mask", "advantages", "old_log_probs"',
            '"response_mask", "old_log_probs"',
            f"{_EZR}/upstream_values/native/test_trainer_easyr1.py",
        ),
        (
            "engine",
            "return share * self._normaliser.tokens / tokens if tokens",
            "return 1.5 * share * self._normaliser.tokens / tokens if tokens",
            f"{_EZR}/upstream_values/native/test_engine_easyr1.py",
        ),
        (
            "engine",
            "scale=replicas, patches=self._patches",
            "scale=1.5 * replicas, patches=self._patches",
            f"{_EZR}/upstream_values/native/test_engine_easyr1.py",
        ),
        (
            "watching",
            "return self._given.rows(places)",
            "return self._given.rows([*places][::-1])",
            f"{_EZR}/upstream_values/native/test_engine_easyr1.py",
        ),
    ),
}
OPEN_INSTRUCT: Mapping[str, Rows] = {
    "core": (
        (
            "candidates",
            "return self.first + len(self.taken)",
            "return self.first + len(self.taken) + 1",
            f"{_OI}/test_candidates_open_instruct.py",
        ),
        (
            "runtime",
            '("clip_higher", lambda value, spec: OFF if value is None else value)',
            '("clip_higher", lambda value, spec: OFF if value else value)',
            f"{_OI}/test_runtime_open_instruct.py -k own_words",
        ),
        (
            "learners",
            "int(self.trainer.num_mini_batches) - 0.5)",
            "int(self.trainer.num_mini_batches))",
            f"{_OI}/upstream_values",
        ),
        ("feed", "self._rows[rank * block + place]", "self._rows[place]", f"{_OI}/upstream_values"),
        (
            "enforced",
            '"order.last_rollout": one_of("drop", "wrap")',
            '"order.last_rollout": one_of("drop", "short", "wrap")',
            f"{_OI}/test_enforced_open_instruct.py",
        ),
    ),
    "trl": (
        (
            "engine",
            "end = middle + piece.completion_tokens",
            "end = middle + piece.completion_tokens - 1",
            f"{_OI}/upstream_values/native/test_pieces_open_instruct.py",
        ),
        (
            "inputs",
            "starts = (piece.start, middle, middle, middle)",
            "starts = (piece.start, middle, end, middle)",
            f"{_OI}/upstream_values/native/test_pieces_open_instruct.py",
        ),
        (
            "sequences",
            "end = piece.shape[1] * (self.place + 1)",
            "end = piece.shape[1] * self.place",
            f"{_OI}/upstream_values/native/test_pieces_open_instruct.py",
        ),
        (
            "watching",
            "range(max(middle - 1 - start, 0)",
            "range(max(middle - start, 0)",
            f"{_OI}/upstream_values/native/test_pieces_open_instruct.py",
        ),
        (
            "probe",
            "advantages=[shifted(part.advantages[:, None] * part.mask) for part in made]",
            "advantages=[shifted(part.mask * 1.0) for part in made]",
            f"{_OI}/upstream_values/native/test_losses_open_instruct.py",
        ),
    ),
    "open_instruct": (
        (
            "engine",
            "self._learner.args.loss_denominator = denominator(self._normaliser)",
            "pass",
            f"{_OI}/native/test_gradients_open_instruct.py",
        ),
    ),
}
FRAMEWORKS: Mapping[str, Mapping[str, Rows]] = {
    "trl": TRL,
    "verl": VERL,
    "openrlhf": OPENRLHF,
    "easyr1": EASYR1,
    "open_instruct": OPEN_INSTRUCT,
}
