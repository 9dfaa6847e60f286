"""vLLM's part of grpo_fast.py, scripted: Open-Instruct's own engine actor with
`batchbridge.testing.tiny.ScriptedRollouts` in place of vLLM, and a transfer of weights that takes their digest in place
of NCCL.

Queues, threads, stamps of weights, the order of sending and its pauses are Open-Instruct's own code. Environment:

`BATCHBRIDGE_RAY`: options of `ray.init`, as JSON. `BATCHBRIDGE_JITTER`: seconds, up to which each prompt's answer
waits, by its own random number: arrival out of order. `BATCHBRIDGE_ASKED`: a file; every completion leaves a line there
with its seed, the step whose weights its prompt is stamped with, and the digest of the weights that the engine had.
`BATCHBRIDGE_KILL`: `rank/step`: that learner kills itself after it has trained that optimizer step.
`BATCHBRIDGE_TOOLS`: a name of `SAYS`. Open-Instruct's own loop over turns, tools and environments answers, and only the
client that it asks for tokens is scripted; see `Client`. `BATCHBRIDGE_REWARDS`: rewards are Open-Instruct's own.
Source: open-instruct e6c3044 vllm_utils.LLMRayActor, process_request, broadcast_weights_to_vllm.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchbridge.contract.hookspecs import hookimpl
from batchbridge.testing.tiny import ScriptedRollouts

HERE = __name__
HOOKS = {
    "ray": f"{HERE}:after_ray",
    "vllm.distributed.weight_transfer.nccl_engine": f"{HERE}:after_nccl",
    "open_instruct.vllm_utils": f"{HERE}:after_engines",
    "open_instruct.data_loader": f"{HERE}:after_data_loader",
    "open_instruct.environments.examples": f"{HERE}:after_environments",
    "open_instruct.environments.generic_sandbox": f"{HERE}:after_sandbox",
}
SAMPLER_LOGPROB = -3.0
"""What the scripted engine claims for every token that it sampled."""
_CONCURRENCY = 64
_POLL_SECONDS = 0.02
_NODE_SECONDS, _PAUSE_SECONDS = 600, 1.0
_SENDING_SECONDS = 0.5
"""What sending weights takes: the script waits until it sees the engines pause, and looks every 0.1 s."""


def after_ray(ray: Any) -> None:
    """`ray.init` with options of the environment; a node that starts slowly, on a busy machine, is waited for."""
    native, options = ray.init, json.loads(os.environ.get("BATCHBRIDGE_RAY", "{}"))
    ray._private.services.get_node = functools.partial(_patiently, ray._private.services.get_node)

    @functools.wraps(native)
    def init(*arguments: Any, **given: Any) -> Any:
        return native(*arguments, **{**options, **given})

    ray.init = init


def _patiently(native: Any, *arguments: Any) -> Any:
    """Ray's own wait ends after 30 seconds. Source: Ray 2.55.0 _private/node.py."""
    end = time.monotonic() + _NODE_SECONDS
    while True:
        try:
            return native(*arguments)
        except RuntimeError:
            if time.monotonic() > end:
                raise


# ---- weights on their way


class Transfer:
    """In the place of `NCCLWeightTransferEngine`: the digest of what is sent goes through Ray; engines wait for it."""

    sent = 0

    @staticmethod
    def trainer_init(info: Mapping[str, Any]) -> str:
        """Names the group that rank 0 sends in."""
        return "scripted"

    @classmethod
    def trainer_send_weights(cls, iterator: Iterable[tuple[str, Any]], trainer_args: Any) -> None:
        """Once per broadcast (gather_whole_model)."""
        from ray.experimental import internal_kv

        time.sleep(_SENDING_SECONDS)
        internal_kv._internal_kv_put(_key(cls.sent), digest(iterator).encode())
        cls.sent += 1


def digest(weights: Iterable[tuple[str, Any]]) -> str:
    """Of tensors by name, in any order."""
    made = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(weights, key=lambda pair: pair[0]):
        made.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return made.hexdigest()


def after_nccl(module: Any) -> None:
    """Weights are sent by `Transfer`."""
    module.NCCLWeightTransferEngine = Transfer


def _key(number: int) -> bytes:
    return f"batchbridge-weights:{number}".encode()


class Engine:
    """In the place of vLLM's engine: a tokenizer, and the digest of the weights that it has."""

    def __init__(self, model: str, tokenizer: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self.weights = digest(AutoModelForCausalLM.from_pretrained(model).named_parameters())
        self.model_config = SimpleNamespace(max_model_len=1 << 16)
        self._received = 0

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Nothing is to be done."""

    async def update_weights(self, request: Any) -> None:
        """Waits for the weights."""
        from ray.experimental import internal_kv

        while (found := internal_kv._internal_kv_get(_key(self._received))) is None:
            await asyncio.sleep(_POLL_SECONDS)
        self.weights = found.decode()
        self._received += 1

    async def sleep(self, **options: Any) -> None:
        """Nothing runs."""

    async def wake_up(self, **options: Any) -> None:
        """Nothing runs."""


# ---- engines


def after_engines(module: Any) -> None:
    """`LLMRayActor` without vLLM: its own queues, threads and stamps, and scripted answers. It asks whether it should
    pause, and takes no answer within a tenth of a second, which a busy machine may never have, for the one before."""
    module.SHOULD_STOP_TIMEOUT_S = _PAUSE_SECONDS
    actor = module.LLMRayActor
    actor._setup_gpu_visibility = lambda self, *arguments: None
    actor._setup_and_start_async_engine = _start
    actor.get_kv_cache_info = _concurrency
    if not os.environ.get("BATCHBRIDGE_REWARDS"):
        module.compute_rewards = _rewards
    if os.environ.get("BATCHBRIDGE_TOOLS"):
        actor._init_openai_client = _ask_client
        module._check_health = _healthy
    else:
        actor._init_openai_client = lambda self: None
        module.process_request = functools.partial(_answer, module)


def _concurrency(self: Any) -> int:
    return _CONCURRENCY


def _start(self: Any, arguments: Any, bundle_indices: Any, options: Mapping[str, Any]) -> None:
    self.llm_engine = Engine(options["model"], options["tokenizer"])
    self.loop = asyncio.new_event_loop()
    self.loop_thread = threading.Thread(target=self.loop.run_forever, daemon=True)
    self.loop_thread.start()


async def _answer(module: Any, actor: Any, request: str, sampling: Any) -> None:
    """In place of `process_request`."""
    from open_instruct.environments.base import RolloutState

    found = module.split_request_id(request)
    base, sample = found["base_id"], found["request_index"]
    asked, script = actor.request_metadata[base], ScriptedRollouts()
    prompt = int(asked["index"])
    tokens, mask = script.completion(prompt, sample), script.loss_mask(prompt, sample)
    await _asked(actor, base, sample, sampling.seed)
    made = module.CompletionOutput(
        index=sample,
        token_ids=tokens,
        cumulative_logprob=SAMPLER_LOGPROB * len(tokens),
        logprobs=[SAMPLER_LOGPROB] * len(tokens),
        finish_reason="stop",
        mask=mask,
        rollout_state=dataclasses.asdict(RolloutState()),
    )
    actor.active_tasks.pop(request, None)
    output = module.RequestOutput(request_id=request, prompt_token_ids=asked["prompt_token_ids"], outputs=[made])
    actor.completion_queue.put(
        {
            "base_request_id": base,
            "expected_n": asked["original_sampling_params"].n,
            "request_output": output,
            "use_tools": True,  # masks are taken from the outputs
        }
    )


async def _asked(actor: Any, base: str, sample: int, seed: int | None) -> None:
    """Waits as the environment says, and leaves the line of a completion that an engine is asked for."""
    asked = actor.request_metadata[base]
    jitter = float(os.environ.get("BATCHBRIDGE_JITTER", "0"))
    await asyncio.sleep(_POLL_SECONDS + jitter * random.Random(base).random())
    if path := os.environ.get("BATCHBRIDGE_ASKED"):
        line = {
            "request": base,
            "prompt": int(asked["index"]),
            "sample": sample,
            "seed": seed,
            "model_step": asked["model_step"],
            "weights": actor.llm_engine.weights,
            "time": time.time(),
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


# ---- tools


class Client:
    """In the place of vLLM's server: the tokens of `ScriptedRollouts`, half of the completions in two turns, as `turns`
    says, with the texts of `SAYS`."""

    def __init__(self, actor: Any) -> None:
        self.completions, self._actor = self, actor

    async def create(self, *, prompt: list[int], extra_body: Mapping[str, Any], seed: int, **options: Any) -> Any:
        """The next turn of the completion that `prompt` begins."""
        base = extra_body["cache_salt"]
        asked = self._actor.request_metadata[base]
        sample = seed - asked["original_sampling_params"].seed
        tokens, *more = turns(int(asked["index"]), sample)
        words = SAYS[os.environ["BATCHBRIDGE_TOOLS"]]
        text = words.first if more else words.only
        if len(prompt) == len(asked["prompt_token_ids"]):
            await _asked(self._actor, base, sample, seed)
        else:
            (tokens,), text = more, words.last
        claimed = SimpleNamespace(token_logprobs=[SAMPLER_LOGPROB] * len(tokens))
        choice = SimpleNamespace(token_ids=tokens, text=text, logprobs=claimed, finish_reason="stop")
        return SimpleNamespace(choices=[choice])


def turns(prompt: int, sample: int) -> list[list[int]]:
    """A scripted completion, in one or two turns."""
    tokens = ScriptedRollouts().completion(prompt, sample)
    called = (prompt + sample) % 2 == 0 and len(tokens) > CALLED_AFTER
    return [tokens[:CALLED_AFTER], tokens[CALLED_AFTER:]] if called else [tokens]


CALLED_AFTER = 2
"""Tokens before a call of a tool."""


@dataclasses.dataclass(frozen=True)
class Says:
    """What a policy says in the first and last of two turns, and in an only one; tokens are others, see `Client`."""

    first: str
    last: str = ""
    only: str = ""


SAYS: Mapping[str, Says] = {
    "python": Says("<python>1</python>"),
    "counter": Says("<increment></increment>", "<submit></submit>"),
    "wordle": Says("<guess>slate</guess>", *["<guess>crane</guess>"] * 2),
    "generic_sandbox": Says("<execute_bash>ls</execute_bash>"),
}
"""By the tool or environment that it talks to."""
TASKS: Mapping[str, Mapping[str, Any]] = {
    "counter": {"target": 1},
    "wordle": {"word": "crane"},
}
"""What a dataset's column env_config says beside the environment's name."""


def after_environments(module: Any) -> None:
    """Wordle's list of English words would be downloaded."""
    module.WordleTextEnv._valid_words = {"crane", "slate"}


class Sandbox:
    """In the place of a container: every command says the same, and files are forgotten."""

    def __init__(self, **options: Any) -> None: ...

    def start(self) -> None:
        """Nothing is to be done."""

    def run_command(self, command: str) -> Any:
        """As if it had run."""
        return SimpleNamespace(stdout="w3 w5 w8", stderr="", exit_code=0)

    def write_file(self, path: str, content: str | bytes) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing runs."""


def after_sandbox(module: Any) -> None:
    """There is no docker."""
    module.create_backend = lambda kind, **options: Sandbox(**options)


def _ask_client(self: Any) -> None:
    self.client, self.model_name, self.server_port = Client(self), "scripted", 0


async def _healthy(port: int) -> None:
    """There is no server."""


async def _rewards(actor: Any, result: Any, example: Any) -> tuple[list[float], dict[str, Any]]:
    """In place of `compute_rewards`; see `ScriptedRollouts.of_environment`."""
    script = ScriptedRollouts.of_environment()
    return [script.reward(int(result.index), sample) for sample in range(len(result.responses))], {}


# ---- faults


class Killer:
    """Ends this process after an optimizer step; see the module."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)


def after_data_loader(module: Any) -> None:
    """Learners that should kill themselves know it."""
    if os.environ.get("BATCHBRIDGE_KILL"):
        from batchbridge.contract import plugins

        plugins.manager().register(Killer(), "batchbridge_open_instruct_killer")
