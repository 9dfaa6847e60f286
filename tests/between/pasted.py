"""What people pasted, one text for each row of the frameworks' error texts."""

from __future__ import annotations

PASTED = {
    "trl-global-batch": "ValueError: The global train batch size (7 x 1) must be evenly divisible by the number of "
    "generations per prompt (8). Given the current train batch size, the valid values for the number of generations "
    "are: [7].",
    "trl-effective-batch": "The effective train batch size (1 x 1 x 4) must be evenly divisible by the number of "
    "generations per prompt (8).",
    "trl-generation-batch": "generation_batch_size (12) must be divisible by num_generations (8).",
    "trl-generation-micro-steps": "generation_batch_size (12) must be divisible by the global batch size (8).",
    "verl-equal-chunks": "AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.",
    "verl-mini-batch-zero": "AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization",
    "verl-mini-of-micro": "normalized ppo_mini_batch_size 20 should be divisible by ppo_micro_batch_size_per_gpu 8",
    "verl-mini-above-rollout": "    assert config.data.train_batch_size >= "
    "config.actor_rollout_ref.actor.ppo_mini_batch_size",
    "verl-minimal-batch": "real_train_batch_size (20) must be divisible by minimal possible batch size (8)",
    "verl-engine-devices": "AssertionError: rollout world_size: 1 is not divisible by infer_tp: 2",
    "verl-micro-batch-chunks": "AssertionError: len(batch_lst) (14) != chunks (15)",
    "deepspeed-batch": "AssertionError: Check batch related parameters. train_batch_size is not equal to "
    "micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 18 * 7",
    "deepspeed-micro-batch-zero": "AssertionError: Micro batch size per gpu: 0 has to be greater than 0",
    "openrlhf-engines-of-ranks": "assert actor_world_size % args.vllm_num_engines == 0",
    "deepspeed-accumulation-zero": "AssertionError: Gradient accumulation steps: 0 has to be greater than 0",
    "easyr1-rollout-of-global": "ValueError: Rollout batch size must be divisible by actor global batch size.",
    "easyr1-offload-with-accumulation": "cannot use FSDP's CPU offload when gradient accumulation is enabled.",
    "division-by-zero-share": "ZeroDivisionError: integer division or modulo by zero",
    "unrecognized-argument": "train_ppo_ray.py: error: unrecognized arguments: --micro_train_batchsize 4",
    "out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
    "killed-rank": "  traceback : Signal 9 (SIGKILL) received by PID 41712",
    "killed-worker": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "collective-timeout": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "tensor-parallel-heads": "ValueError: Total number of attention heads (14) must be divisible by tensor parallel "
    "size (4).",
    "skyrl-mini-batch": "data batch size must be divisible by mini_batch_size, got 1032 and 512",
    "unsloth-silent-rewrite": "Unsloth: We now expect `per_device_train_batch_size` to be a multiple of "
    "`num_generations`. We will change the batch size of 1 to the `num_generations` of 8",
}
"""One text as users pasted it (numbers from their threads where they are known), by the name of its row."""

SAID = {
    "trl-unsloth-refuses": "ValueError: Unsloth: Please set a positive non-zero temperature since your results will be "
    "wrong.",
    "trl-evaluation-batch": "ValueError: The global eval batch size (8 * 7) must be divisible by the number of "
    "generations used for evaluation (6).",
    "trl-trainer-arguments": "TypeError: GRPOTrainer.__init__() got an unexpected keyword argument 'tokenizer'",
    "trl-two-generations": "ValueError: GRPO requires at least 2 generations per prompt to calculate the advantages.",
    "trl-two-rollout-sizes": "ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both "
    "configured at the same time",
    "trl-unknown-argument": "ValueError: Unknown arguments from config file: ['vllm_device']",
    "verl-no-such-field": "hydra.errors.InstantiationException: Error in call to target "
    "'verl.workers.config.actor.FSDPActorConfig':\nTypeError(\"FSDPActorConfig.__init__() got an unexpected keyword "
    "argument 'ppo_minibatch_size'\")",
    "trl-unexpected-keyword": "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length'",
    "verl-unknown-key": "Could not override 'actor_rollout_ref.actor.ppo_micro_batchsize_per_gpu'.\nTo append to "
    "your config use +actor_rollout_ref.actor.ppo_micro_batchsize_per_gpu=4\n"
    "Key 'ppo_micro_batchsize_per_gpu' is not in struct",
    "verl-present-key": "Could not append to config. An item is already at 'actor_rollout_ref.actor.clip_ratio'.",
    "verl-total-devices": "AssertionError: real_train_batch_size (60) must be divisible by total n_gpus (16).",
    "verl-token-budget": "AssertionError: max_token_len must be greater than the sequence length. Got "
    "max_token_len=4096 and max_seq_len=5120",
    "verl-rows-of-a-column": "AssertionError: key task_suite_name length 10 is not equal to batch size 11",
    "verl-too-few-groups": "ValueError: num_gen_batches=10 >= max_num_gen_batches=10. Generated too many. Please check "
    "your data.",
    "verl-mini-batches-of-a-rank": "AssertionError: 128 % 24 != 0",
    "verl-micro-batches-of-a-rank": "    assert tensors.batch_size[0] % batch_size == 0",
    "verl-virtual-pipeline": "ValueError: The number of contiguous micro-batches in a virtual pipeline stageshould "
    "range in [PP=2 , M=1]",
    "verl-other-number-of-rows": "AssertionError: Two tensor dict must have identical batch size. Got "
    "torch.Size([8192]) and torch.Size([1024])",
    "verl-uneven-answers": 'File "verl/experimental/agent_loop/agent_loop.py", line 800, in _postprocess\n'
    "ValueError: zip() argument 2 is shorter than argument 1",
    "no-optimizer-step": "    assert self.lr_decay_steps > 0",
    "deepspeed-active-modules": "    assert not param.ds_active_sub_modules, param.ds_summary()",
    "verl-step-of-replicas": "AssertionError: Got mini_batch_size=80 and self.engine.get_data_parallel_size()=32",
    "verl-micro-of-share": "AssertionError: data size must be divisible by micro_batch_size_per_gpu, got 10 and 4",
    "verl-no-micro-batch": "ValueError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or "
    "'actor.ppo_micro_batch_size_per_gpu' if use_dynamic_bsz is not enabled.",
    "verl-devices-of-parallel-sizes": "AssertionError: n_gpus (6) must be divisible by model_parallel_size (4) times "
    "context_parallel_size (1)",
    "easyr1-group-of-one": "ValueError: GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.",
    "easyr1-micro-of-share": "ValueError: actor global batch size per device must be divisible by the micro batch "
    "size.",
    "easyr1-nothing-per-device": "ValueError: actor global batch size * ulysses size must be larger than num gpus.",
    "openrlhf-sample-batches": "AssertionError: The number of sample batches must be greater than or equal to the "
    "effective number of actor processes.",
    "openrlhf-filter-needs-groups": "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic "
    "filtering",
    "openrlhf-filter-needs-scores": "AssertionError: remote_rm_url or agent_func_path must be specified when using "
    "dynamic filtering",
    "openrlhf-no-token": "merged_status[k] = value / denom ~~~~~~^~~~~~~ ZeroDivisionError: float division by zero",
    "openrlhf-two-boundaries": "for accumulated_grad, new_avg_grad in zip(self.all_grad_tensors[i], avg_new): "
    "TypeError: 'NoneType' object is not iterable",
    "open-instruct-pack-length": "AssertionError: The `pack_length` needs to be greater than the sum of the others",
    "open-instruct-group-of-one": "ValueError: `filter_zero_std_samples` cannot be True when the group has one sample",
}
"""One text for each row, by its name."""
