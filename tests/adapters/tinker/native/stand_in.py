"""A service of Tinker's on a CPU: the client's methods with the SDK's own types, around a tiny policy in torch.

The losses are those of Tinker's documentation, sums over all tokens; calls before an optimizer step add up; the step is
torch's AdamW, as the SDK says. Every parameter is trained: which ones does not decide what a token weighs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from tinker import types

from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy

Change = Callable[[int, types.Datum], types.Datum]
"""What a negative control makes of a row of an optimizer step."""


class Done:
    """A future that has its result."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self) -> Any:
        return self._result


class Policy:
    """The training client. gradients, policies: of every optimizer step, the gradient that it took and the policy
    before it. calls: rows of each forward_backward call, by step. change: what is made of each row."""

    def __init__(self, script: ScriptedRollouts, change: Change | None = None) -> None:
        self.model = tiny_policy()
        self.script, self._change = script, change
        self.gradients: list[torch.Tensor] = []
        self.policies: list[Any] = []
        self.calls: list[list[int]] = [[]]
        self.losses: list[str] = []
        self.rates: list[float] = []
        self._optimizer: torch.optim.AdamW | None = None

    def forward(self, data: Sequence[types.Datum], loss_fn: str, loss_fn_config: Any = None) -> Done:
        with torch.no_grad():
            said = [self._logprobs(datum)[1] for datum in data]
        rows = [{"logprobs": types.TensorData.from_torch(each)} for each in said]
        return Done(types.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=rows))

    def forward_backward(
        self, data: Sequence[types.Datum], loss_fn: str, loss_fn_config: Mapping[str, float] | None = None
    ) -> Done:
        rows = data if self._change is None else [self._change(len(self.gradients), datum) for datum in data]
        for datum in rows:
            inputs, said = self._logprobs(datum)
            service_loss(loss_fn, said, inputs, loss_fn_config or {}).backward()
        self.calls[-1].append(len(data))
        self.losses.append(loss_fn)
        return Done(None)

    def optim_step(self, optim_params: types.AdamParams) -> Done:
        parameters = list(self.model.parameters())
        self.policies.append(copy.deepcopy(self.model))
        self.gradients.append(torch.cat([one.grad.flatten().clone() for one in parameters]))
        if optim_params.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, optim_params.grad_clip_norm)
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(parameters)
        adam = {
            "lr": optim_params.learning_rate,
            "betas": (optim_params.beta1, optim_params.beta2),
            "eps": optim_params.eps,
        }
        self._optimizer.param_groups[0].update(adam, weight_decay=optim_params.weight_decay)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.rates.append(optim_params.learning_rate)
        self.calls.append([])
        return Done(types.OptimStepResponse())

    def save_weights_and_get_sampling_client(self) -> Done:
        return Done(Sampler(self))

    def _logprobs(self, datum: types.Datum) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        inputs = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
        logits = self.model(input_ids=torch.tensor([datum.model_input.to_ints()])).logits[0]
        chosen = torch.log_softmax(logits, -1).gather(1, inputs["target_tokens"][:, None])[:, 0]
        return inputs, chosen


def service_loss(
    name: str, said: torch.Tensor, inputs: Mapping[str, torch.Tensor], config: Mapping[str, float]
) -> torch.Tensor:
    """The loss of a row: `cross_entropy`, `importance_sampling`, `ppo` or `cispo`, a sum over tokens."""
    if name == "cross_entropy":
        assert inputs.keys() == {"target_tokens", "weights"}
        return -(said * inputs["weights"]).sum()
    assert inputs.keys() == {"target_tokens", "advantages", "logprobs"}
    ratio, advantages = (said - inputs["logprobs"]).exp(), inputs["advantages"]
    if name == "importance_sampling":
        assert not config
        return -(ratio * advantages).sum()
    assert config.keys() == {"clip_low_threshold", "clip_high_threshold"}
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    if name == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages).sum()
    assert name == "cispo", name
    return -(clipped.detach() * said * advantages).sum()


def off(tokens: int) -> torch.Tensor:
    """The differences of the sampler's log-probabilities from the trainer's, so that neither stands for the other."""
    return torch.tensor([0.05 * (place % 3 - 1) for place in range(tokens)])


def is_cut(number: int, sample: int) -> bool:
    """Whether a completion counts as cut at the length limit."""
    return (number + sample) % 5 == 0


class Sampler:
    """The sampling client: the script's completions, with log-probabilities of the weights that were saved."""

    def __init__(self, policy: Policy) -> None:
        self._script = policy.script
        self._model = copy.deepcopy(policy.model)

    def sample(self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams) -> Done:
        asked = prompt.to_ints()
        number = self._script.prompt_index(" ".join(f"w{token - 3}" for token in asked))
        sequences = []
        for sample in range(num_samples):
            tokens = self._script.completion(number, sample)
            with torch.no_grad():
                logits = self._model(input_ids=torch.tensor([asked + tokens])).logits[0, len(asked) - 1 : -1]
            said = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0] + off(len(tokens))
            cut = "length" if is_cut(number, sample) else "stop"
            sequences.append(
                types.SampledSequence(
                    stop_reason=cut,
                    sequence_id=f"{number}-{sample}",
                    tokens_np=numpy.array(tokens, dtype=numpy.int32),
                    logprobs_np=said.numpy(),
                )
            )
        return Done(types.SampleResponse(sequences=sequences))


class Service:
    """The service client, of one training client."""

    def __init__(self, script: ScriptedRollouts, change: Change | None = None) -> None:
        self.client = Policy(script, change)
        self.asked: dict[str, Any] = {}

    def create_lora_training_client(self, base_model: str, rank: int) -> Done:
        self.asked = {"base_model": base_model, "rank": rank}
        return Done(self.client)
