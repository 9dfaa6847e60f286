"""OpenRLHF's batch arithmetic: the integers that decide it, and what really happens with them, by version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.records import dataclass
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.settings import holds

FIELDS = {
    "rollout_prompts": names.ROLLOUT,
    "group": names.GROUP,
    "train": names.TRAIN,
    "micro": names.MICRO,
    "forward_micro": names.FORWARD,
    "passes": names.PASSES,
    "episodes": names.EPISODES,
    "nodes": names.NODES,
    "devices_per_node": names.DEVICES,
    "ring": names.RING,
    "tensor": names.TENSOR,
}
"""Field of `OpenRlhfSizes` -> identity of its option."""
DROPPED_TAIL, DROPPED_TAIL_ASYNC = "<0.11", "<0.9.9"
"""Versions that drop an epoch's incomplete rollout, and those that do so with asynchronous training. Source: openrlhf
0.8.0 to 0.9.0 setup_dataloader(drop_last=True), 0.9.1 to 0.9.8 SamplesGenerator._generate_vllm (returns nothing when
exhausted), 0.9.9 to 0.10.4 PPOTrainer.fit (leaves before it trains on what was generated last; measured: 0.10.4);
0.9.9 GenerateSamplesActor.fit hands it on."""
SHARED_PROMPTS = "<0.7.1"
"""Versions in which each replica generates for its own, equal share of a rollout's prompts. Source: openrlhf 0.5.2 to
0.7.0 ActorModelRayActor.prepare_datasets, `rollout_batch_size // (world_size // ring_attn_size)`."""
UNREAD_GENERATION = ">=0.9.1,<0.10.0"
"""Versions that do not read vllm_generate_batch_size."""


@dataclass(frozen=True)
class OpenRlhfSizes:
    """The integers as given. Units: `rollout_prompts` and `generation` prompts; `group` completions per prompt;
    `train` completions per optimizer step, over all replicas; `micro` and `forward_micro` completions per replica;
    `world` devices, `asked` when the user named it beside the options; `passes` over a rollout, `episodes` over the
    prompts."""

    rollout_prompts: int
    group: int
    train: int
    micro: int
    forward_micro: int
    passes: int
    episodes: int
    nodes: int
    devices_per_node: int
    ring: int
    tensor: int
    world: int
    asked: bool
    generation: int | None
    filtered: bool
    dynamic: bool
    asynchronous: bool
    version: str

    @property
    def positive(self) -> bool:
        """Whether every size that something is divided by, or that counts devices or completions, is at least 1."""
        return not self.below_one and self.prompts_per_rollout > 0

    @property
    def below_one(self) -> dict[str, int]:
        """Sizes below 1, by option identity; the world under its devices per node."""
        names_of_sizes = ("rollout_prompts", "group", "train", "micro", "forward_micro", "ring", "tensor")
        sizes = {FIELDS[name]: getattr(self, name) for name in names_of_sizes}
        devices = {names.NODES: self.nodes, names.DEVICES: self.devices_per_node}
        if self.generation is not None and not holds(UNREAD_GENERATION, self.version):
            sizes[names.GENERATION] = self.generation
        sizes |= {names.DEVICES: self.world} if self.asked else devices
        return {identity: size for identity, size in sizes.items() if size < 1}

    @property
    def replicas(self) -> int:
        """Data-parallel replicas, rounded down as OpenRLHF does."""
        return self.world // self.ring // self.tensor

    @property
    def prompts_per_rollout(self) -> int:
        """Prompts that one rollout really trains on, where vllm_generate_batch_size says otherwise than
        rollout.batch_size.

        Source: openrlhf 0.8.1 to 0.9.0 PPOTrainer.fit (a rollout is one batch of the prompt loader, unless filtered),
        0.9.1 to 0.9.10 SamplesGenerator (the option is not read), 0.10.0 to 0.11.2 SamplesGenerator.generate_samples
        (generates once, then takes at most rollout.batch_size prompts).
        """
        if holds(SHARED_PROMPTS, self.version):
            return self.rollout_prompts // self.replicas * self.replicas if self.replicas > 0 else 0
        if self.generation is None or holds(UNREAD_GENERATION, self.version):
            return self.rollout_prompts
        if holds("<0.9.1", self.version):
            return self.rollout_prompts if self.filtered else self.generation
        return min(self.rollout_prompts, self.generation)

    @property
    def drops_tail(self) -> bool:
        """Whether an epoch's incomplete rollout is never trained."""
        return holds(DROPPED_TAIL_ASYNC if self.asynchronous else DROPPED_TAIL, self.version)

    @property
    def completions_per_rollout(self) -> int:
        """Completions that one full rollout trains on in one pass."""
        return self.prompts_per_rollout * self.group

    @property
    def accumulation(self) -> int:
        """Micro-batches per optimizer step and replica, rounded down as OpenRLHF does.

        Source: openrlhf 0.11.2 DeepspeedStrategy.setup_distributed.
        """
        return self.train * self.ring * self.tensor // self.micro // self.world

    @property
    def whole_replicas(self) -> bool:
        """Whether the devices are shared out to replicas without a remainder."""
        return self.world % (self.ring * self.tensor) == 0

    @property
    def whole_accumulation(self) -> bool:
        """DeepSpeed's own rule on train batch, micro-batch and replicas."""
        return self.replicas > 0 and self.train % (self.micro * self.replicas) == 0


def sizes_of(settings: Mapping[str, Any], version: str, world: int | None) -> OpenRlhfSizes | None:
    """The sizes in `settings` (by identity); None while one of them is missing or no integer."""
    values = {name: settings.get(identity) for name, identity in FIELDS.items()}
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values.values()):
        return None
    generation = settings.get(names.GENERATION)
    if generation is not None and not isinstance(generation, int):
        return None
    return OpenRlhfSizes(
        **values,  # type: ignore[arg-type]  # checked above
        world=values["nodes"] * values["devices_per_node"] if world is None else world,  # type: ignore[operator]
        asked=world is not None,
        generation=generation or None,  # 0 counts as unset there
        filtered=bool(settings.get(names.FILTER)),
        dynamic=bool(settings.get(names.DYNAMIC)),
        asynchronous=bool(settings.get(names.ASYNC)),
        version=version,
    )
