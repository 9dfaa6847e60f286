"""The version of the policy's weights that generated a completion, measured where it is generated.

A version is an optimizer step: weights before whose update a completion was generated. The training process of rank 0
says to every engine which version is coming, before OpenRLHF's own broadcast, and which weights it has, behind it. The
engine's process counts what its workers really took; only what arrived whole makes another version. A completion gets
the versions that stood when it began and when it ended, sealed together with its tokens by a key of this start of the
run, so that a version that anybody writes in between, or another completion's, is seen where it is trained. What an
answer itself says of its version is not looked at.

Source: openrlhf 0.11.2 vllm_engine.RolloutRayActor, whose calls of an executor and of vLLM's `collective_rpc` are
looked at: Ray calls an actor's methods by its class, past what stands on the object.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.patches import Patches

BORN = "batchbridge_born"
"""Key of an answer, and of an experience's `info`: the versions when the completion began and ended, and the seal."""
UNKNOWN = -1
"""The version of weights of which nobody can say it."""
NAME = "weights_version"
"""The refusal's name."""
UPDATES = ("update_weight", "update_weight_cuda_ipc")
"""Methods that vLLM's workers are asked to run for one weight."""


def sealed(key: str, began: int, ended: int, ids: bytes) -> int:
    """The seal on a completion's versions, which only this start of the run can make. ids: its tokens, 8 bytes each."""
    whole = array("q", [began, ended]).tobytes() + ids
    made = hashlib.blake2b(whole, key=key.encode(), digest_size=8).digest()
    return int.from_bytes(made, "little", signed=True)


def against(born: Sequence[int] | None, ids: bytes, key: str, sent: Collection[int]) -> str | None:
    """The reason why a completion's version is not believed; None: it is. sent: the versions that engines can have."""
    if born is None:
        return "a completion came without the version of the weights that generated it: its engine was not reached"
    began, ended, seal = born
    if seal != sealed(key, began, ended, ids):
        return (
            "a completion's version of the weights, or its tokens, are not those that its engine sealed: something "
            "between the engine and the replay buffer changes them"
        )
    if UNKNOWN in (began, ended) or began != ended:
        return (
            f"weights came while a completion was generated, or came in part ({_said(began)} when it began, "
            f"{_said(ended)} when it ended): leave out what lets generation and broadcasts overlap"
        )
    if began not in sent:
        return f"a completion was generated with {_said(began)}, and those were not sent; sent were {sorted(sent)}"
    return None


def _said(version: int) -> str:
    return "unknown weights" if version == UNKNOWN else f"the weights before optimizer step {version}"


class EngineWeights:
    """The weights that one engine has, in its process. version: before any was sent."""

    def __init__(self, engine: Any, key: str, version: int) -> None:
        self.version, self._key = version, key
        self._before, self._coming = version, UNKNOWN
        self._arrived: set[str] = set()
        self._native, self._rpc = engine.executor.execute, engine.llm.collective_rpc
        self.patches = Patches()
        why = "ledger"
        self.patches.set(engine.executor, "execute", self._execute, what="completions get their version", why=why)
        self.patches.set(engine.llm, "collective_rpc", self._call, what="arriving weights are counted", why=why)

    def announce(self, version: int) -> None:
        """The next weights are those of `version`."""
        self._before, self.version, self._coming = self.version, UNKNOWN, version
        self._arrived.clear()

    def settle(self, names: Collection[str]) -> None:
        """The broadcast is over; it had the weights `names`. Where none came the engine has what it had."""
        if not self._arrived:
            self.version = self._before
        elif self._arrived == set(names):
            self.version = self._coming
        self._coming = UNKNOWN

    async def _call(self, method: Any, *given: Any, **options: Any) -> Any:
        result = await self._rpc(method, *given, **options)
        if method in UPDATES:
            self.version = UNKNOWN
            (name, *_) = options.get("args") or given[-1]
            self._arrived.add(name)
        return result

    async def _execute(self, **asked: Any) -> Any:
        began = self.version
        answer = await self._native(**asked)
        ids = array("q", map(int, answer["observation_tokens"][: asked["max_length"]])).tobytes()
        answer[BORN] = [began, self.version, sealed(self._key, began, self.version, ids)]
        return answer


def in_engine(engine: Any, key: str, version: int) -> bool:
    """Reaches one engine, in its own process; False where it asks for samples, or takes weights, in another way."""
    out_of_engine(engine)
    executor, llm = getattr(engine, "executor", None), getattr(engine, "llm", None)
    if not hasattr(executor, "execute") or not hasattr(llm, "collective_rpc"):
        return False
    engine.batchbridge_weights = EngineWeights(engine, key, version)
    return True


def out_of_engine(engine: Any) -> None:
    """Undoes `in_engine`; an engine without it is left alone."""
    weights = vars(engine).pop("batchbridge_weights", None)
    if weights is not None:
        weights.patches.undo()


def announce(engine: Any, version: int) -> None:
    """The announcement, inside an engine's process, of weights that are sent next."""
    engine.batchbridge_weights.announce(version)


def settle(engine: Any, names: Collection[str]) -> None:
    """The settling, inside an engine's process, of weights that were sent."""
    engine.batchbridge_weights.settle(names)


def everywhere(engines: Sequence[Any], function: Any, *values: Any) -> list[Any]:
    """The answers of `function(engine, *values)` in every engine's process. Raises `CannotAttach`."""
    import ray

    try:
        found: list[Any] = ray.get([engine.__ray_call__.remote(function, *values) for engine in engines])
    except (ImportError, ray.exceptions.RayError) as error:
        raise CannotAttach({NAME: f"an engine was not reached: {error}; install batchbridge on every node"}) from error
    return found


def reach(engines: Sequence[Any], key: str, version: int) -> None:
    """Reaches every engine. Raises `CannotAttach` where one does not answer."""
    answers = everywhere(engines, in_engine, key, version)
    if not all(answers):
        reason = f"{answers.count(True)} of {len(answers)} engines take samples and weights as RolloutRayActor does"
        raise CannotAttach({NAME: f"{reason}: use openrlhf's own engines"})


def born(info: Mapping[str, Any]) -> list[int] | None:
    """The versions and the seal of one completion's experience."""
    found = info.get(BORN)
    return None if found is None else [int(value) for value in found.flatten()]
