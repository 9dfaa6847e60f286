"""grpo.py's OLMo-core on the CPU, beside `cpu`: its hooks go to `cpu.start`.

For tests. What it declares: gloo for NCCL; torch's own operations in place of flash attention's kernel; the shape
of a policy in a folder is that of its configuration, where Open-Instruct knows the shapes of published models alone;
the optimizer that `cpu.OPTIMIZER` names in place of AdamW; checkpoints are saved before a run goes on. FSDP2, the
train module, trainer and checkpoints are OLMo-core's.

Source: open-instruct e6c3044 grpo_olmo_core_actor.py, olmo_core_utils.get_transformer_config; ai2-olmo-core 3.0.0.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchbridge.testing.equivalence import ADAM_EPSILON
from batchbridge_on_cpu.open_instruct.cpu import OPTIMIZER

HERE = __name__
HOOKS = {
    "olmo_core.train": f"{HERE}:after_train",
    "olmo_core.train.callbacks.checkpointer": f"{HERE}:after_checkpoints",
    "olmo_core.nn.attention.flash_attn_api": f"{HERE}:after_flash_attention",
    "olmo_core.nn.attention.backend": f"{HERE}:after_backends",
    "open_instruct.olmo_core_utils": f"{HERE}:after_utils",
    "open_instruct.grpo_olmo_core_actor": f"{HERE}:after_learner",
}


def after_train(module: Any) -> None:
    """gloo, and no device that a process has to itself."""
    import torch

    native = module.prepare_training_environment
    torch.cuda.synchronize = lambda *arguments, **options: None

    @functools.wraps(native)
    def prepared(**options: Any) -> None:
        native(**{**options, "backend": "gloo"})

    module.prepare_training_environment = prepared


def after_checkpoints(module: Any) -> None:
    """Saved at once: of a run that is nearly over when a save in the background ends, one rank may log that, and wait
    for the others for ever. Source: ai2-olmo-core 3.0.0 Trainer._log_metrics, which one without metrics leaves."""
    native = module.CheckpointerCallback.pre_train

    @functools.wraps(native)
    def pre_train(self: Any) -> None:
        self.save_async = False
        native(self)

    module.CheckpointerCallback.pre_train = pre_train


def after_flash_attention(module: Any) -> None:
    """The kernel."""
    module.flash_attn_2 = SimpleNamespace(flash_attn_varlen_func=attention)


def after_backends(module: Any) -> None:
    """Without a GPU OLMo-core takes torch's attention, which knows no documents: it runs as flash attention does."""
    module.TorchAttentionBackend.forward = module.FlashAttention2Backend.forward


def attention(
    query: Any,
    key: Any,
    value: Any,
    starts: Any,
    starts_of_keys: Any,
    *lengths: int,
    softmax_scale: float | None,
    **more: Any,
) -> Any:
    """Causal within each document; (tokens, heads, width) in and out. starts: of the documents, and the end."""
    import torch

    assert more["causal"], "a policy's own attention"
    assert torch.equal(starts, starts_of_keys), "a policy's own attention"
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    places = torch.arange(len(query), device=query.device)
    document = torch.bucketize(places, starts[1:-1].to(places), right=True)
    seen = (document[:, None] == document[None, :]).tril()
    scale = softmax_scale or query.shape[-1] ** -0.5
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), value).contiguous()


def after_utils(module: Any) -> None:
    """A policy in a folder has the shape of its configuration."""
    native = module.get_transformer_config

    @functools.wraps(native)
    def shaped(name: str, vocab_size: int, attn_backend: str) -> Any:
        return _shape(name, vocab_size, attn_backend) if Path(name).is_dir() else native(name, vocab_size, attn_backend)

    module.get_transformer_config = shaped


def _shape(folder: str, vocab_size: int, attention: str) -> Any:
    from olmo_core.nn.attention import AttentionBackendName
    from olmo_core.nn.feed_forward import FeedForwardConfig
    from olmo_core.nn.transformer import TransformerConfig
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    return TransformerConfig.llama_like(
        d_model=config.hidden_size,
        vocab_size=vocab_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        layer_norm_eps=config.rms_norm_eps,
        rope_theta=int(config.rope_parameters["rope_theta"]),
        feed_forward=FeedForwardConfig(hidden_size=config.intermediate_size, bias=False),
        attn_backend=AttentionBackendName(attention),
    )


def after_learner(module: Any) -> None:
    """Another optimizer where the environment asks for it."""
    import torch
    from olmo_core.optim.config import OptimConfig

    native = module.AdamWConfig

    @dataclasses.dataclass
    class SGDConfig(OptimConfig):  # type: ignore[misc]  # another package's
        lr: float = 1e-3

        @classmethod
        def optimizer(cls) -> Any:
            return torch.optim.SGD

    def build(lr: float, weight_decay: float) -> Any:
        asked = os.environ.get(OPTIMIZER)
        if asked == "sgd":
            return SGDConfig(lr=lr)
        return native(lr=lr, weight_decay=weight_decay, **({"eps": ADAM_EPSILON} if asked == "adamw" else {}))

    module.AdamWConfig = build
