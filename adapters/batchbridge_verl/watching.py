"""The input of the optimizer in one training worker: measured in every optimizer step, in every mode.

Three places, none of which knows a denominator of verl's: the log-probabilities that the engine makes (a hook on the
tensor), one small weight (its own gradients of every micro-batch against what the optimizer finds), and the optimizer
itself, whose last moment before the update is where everything is held against the plan.

Source: verl 0.8.0 to 0.9.1 workers/engine/fsdp/transformer_impl.py, workers/utils/padding.py, utils/fsdp_utils.py;
torch 2.13.0 distributed/fsdp.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from batchbridge import LostGradient
from batchbridge.kit import Objective, Surrogate
from batchbridge.kit.gradient_sketches import sketches_of
from batchbridge.kit.measuring import Measured, Rows
from batchbridge.kit.model_inputs import HeldModelInputs, SeenModelInputs
from batchbridge.kit.patches import Patches
from batchbridge.kit.step_probe import MEASURED, StepProbe
from batchbridge.kit.workers import TrainedRow, read_places
from batchbridge_verl.distillation import TeacherRows
from batchbridge_verl.terms import KL_CLAMP

ROW = "batchbridge_row"
"""Column of a rank's batch: each row's place in it, which its micro-batches keep."""
FORMULAS = ("ppo", "gspo", "cispo", "dro", "sapo", "gpg", "gmpo")
"""Surrogates whose gradient has a formula here. clip_cov and kl_cov choose tokens by the statistics of a micro-batch,
dppo's choice hangs on rounding: nothing shows what their rows weigh."""
MODEL_INPUTS = ("input_ids", "position_ids")
"""Columns that a model is run on."""
FURTHEST = 20.0
"""Log of a token's ratio beyond which its loss has no gradient. Source: verl 0.9.1 compute_policy_loss_vanilla."""


def padded_column(data: Any, name: str) -> torch.Tensor:
    """A column of a batch, one row beside the other: the V1 trainer sends nested tensors, the V0 trainer padded
    ones."""
    values: torch.Tensor = data[name]
    return values.to_padded_tensor(0) if values.is_nested else values.clone()


@dataclasses.dataclass(frozen=True)
class VerlStepInputs:
    """A rank's rows as they arrived: copies, since the loss may change what it is given.

    All of shape (rows, tokens), kl_share (rows, 1). old, reference: log-probabilities; None where the loss has none.
    sampler: the correction towards the sampler. kl_share: see `measuring.Rows`.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None
    sampler: torch.Tensor | None
    kl_share: torch.Tensor | None
    teacher: TeacherRows | None = None
    """The teacher whose distance gives the advantages, in place of those that arrived."""
    model_inputs: HeldModelInputs = dataclasses.field(default_factory=lambda: HeldModelInputs({}))
    """The rows' tokens and their positions, and the temperature, as the model should be run on them."""

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        detached: bool,
        penalised: bool,
        kl_share: Sequence[float] | None = None,
        mask: str = "loss_mask",
        teacher: TeacherRows | None = None,
        temperature: float | None = None,
        model_inputs: Sequence[str] = MODEL_INPUTS,
    ) -> VerlStepInputs:
        """The values that a batch gives. data: a batch as the trainer sends it. detached: ratios are over the current
        policy. penalised: a KL term is in the loss. mask: the column that says which tokens are trained. temperature:
        see `HeldModelInputs`. model_inputs: columns that a model is run on."""
        column = functools.partial(padded_column, data)
        corrected = "rollout_is_weights" in data.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
        return cls(
            column(mask),
            column("advantages"),
            None if detached else column("old_log_probs"),
            column("ref_log_prob") if penalised else None,
            column("rollout_is_weights") if corrected else None,
            None if kl_share is None else torch.tensor(kl_share, dtype=torch.float64)[:, None],
            teacher,
            HeldModelInputs.of(data, model_inputs, temperature),
        )

    def rows(self, places: Sequence[int], current: torch.Tensor, *, bounded: bool) -> Rows:
        """The rows at `places` and what they are meant to train, whose log-probabilities under the current policy are
        given. bounded: the loss has no gradient beyond `FURTHEST`."""
        width, device = current.shape[1], current.device
        picked = list(places)

        def here(values: torch.Tensor) -> torch.Tensor:
            return values[picked, :width].to(device)

        old = None if self.old is None else here(self.old)
        sampler = None if self.sampler is None else here(self.sampler)

        def factor(new: torch.Tensor) -> torch.Tensor:
            inside = torch.ones_like(new) if old is None else ((new - old).abs() <= FURTHEST).to(new.dtype)
            return inside if sampler is None else inside * sampler

        return Rows(
            mask=here(self.mask),
            advantages=(
                here(self.advantages) if self.teacher is None else self.teacher.advantages(list(places), current)
            ),
            old=old,
            reference=None if self.reference is None else here(self.reference),
            multiplier=factor if bounded else sampler,
            kl_share=None if self.kl_share is None else here(self.kl_share),
        )


class VerlStepProbe(StepProbe):
    """The measuring of one engine's optimizer steps. objective: what its loss computes. config: the loss's own."""

    output: ClassVar[str] = "log_probs"
    """The engine's output that its loss is a function of."""

    def __init__(self, engine: Any, objective: Objective, config: Any, patches: Patches) -> None:
        self._engine, self._config = engine, config
        super().__init__(objective_of(objective), patches)
        self.shows = (self.objective.surrogate or "ppo") in FORMULAS
        self._given: VerlStepInputs | None = None
        self._places: list[list[int]] = []
        self._run_on = SeenModelInputs()
        self._hook(patches)

    def _hook(self, patches: Patches) -> None:
        engine, made = self._engine, "log-probabilities hooked"
        self._native_outputs = patches.read(engine, "prepare_model_outputs", self._outputs, what=made, why=MEASURED)
        self._hook_clipping(patches)
        self.watch_gradients(lambda: sketches_of(engine.module))

    def surrogates(self) -> Mapping[str, Surrogate]:
        """verl's own, of the loss's settings."""
        return surrogates(self._config)

    @property
    def ranks(self) -> int:
        """The number that verl multiplies a loss with: data-parallel ranks. Those of a sequence group have the same
        rows, and the same gradient at their log-probabilities."""
        return int(self._engine.get_data_parallel_size())

    def valued(self) -> Objective | None:
        """verl's straight-through estimators ("k3+") have another one's gradient; see `StepProbe.valued`."""
        estimator = self.objective.kl_estimator or ""
        if not estimator.endswith("+"):
            return None
        return objective_of(dataclasses.replace(self.objective, kl_estimator=estimator.removesuffix("+")))

    # ---- log-probabilities

    @contextlib.contextmanager
    def expecting(self, given: VerlStepInputs) -> Iterator[None]:
        """The span in which an optimizer step runs: its rows."""
        self.drop()
        self._given = given
        try:
            yield
        finally:
            self._given = None

    def drop(self) -> None:
        """Forgets what was seen since the last step."""
        super().drop()
        self._places.clear()
        self._run_on.drop()

    def loss(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The loss that the engine is handed: verl's, whose value is recorded."""

        @functools.wraps(native)
        def valued(*arguments: Any, **options: Any) -> Any:
            result = native(*arguments, **options)
            compared = self.shows and not self._observation.observes
            if compared and self._given is not None and self._given.teacher is None:
                self._tap.returned(result[0], beside=self._bonus(options))
            return result

        return valued

    def _bonus(self, given: Mapping[str, Any]) -> Any:
        """The part of a loss's value that the entropies have, added up as verl does it. given: what the loss was."""
        entropy, coefficient = given["model_output"].get("entropy"), getattr(self._config, "entropy_coeff", 0)
        if entropy is None or not coefficient or self.output != "log_probs":
            return 0.0
        from verl.trainer.ppo.core_algos import agg_loss
        from verl.workers.utils.padding import no_padding_2_padding

        data = given["data"]
        with torch.no_grad():
            mean = agg_loss(
                loss_mat=no_padding_2_padding(entropy, data),
                loss_mask=data.select("response_mask").to_padded_tensor()["response_mask"].bool(),
                loss_agg_mode=self._config.loss_agg_mode,
                **self._config.global_batch_info,
            )
        return -coefficient * mean

    def updates(self) -> None:
        """The hook that runs before the engine's own `optimizer_step`."""

    def _outputs(self, *arguments: Any, **options: Any) -> Any:
        outputs = self._native_outputs(*arguments, **options)
        if self._given is not None:
            micro_batch = options["micro_batch"]
            temperature = None if self._given.model_inputs.temperature is None else micro_batch["temperature"]
            self._run_on.compare(self._given.model_inputs, micro_batch[ROW].tolist(), micro_batch, temperature)
        if (made := outputs.get(self.output)) is not None:
            self._hooked(made, options["micro_batch"])
        return outputs

    def _hooked(self, made: torch.Tensor, micro_batch: Any) -> None:
        """Hooks a micro-batch's log-probabilities, where a step is being measured."""
        if self._given is None or not self.shows or not made.requires_grad:
            return
        view = responses_of(micro_batch)
        places = [int(place) for place in micro_batch[ROW].tolist()]
        rows = self._given.rows(places, view(made.detach()), bounded=self._bounded)
        self._tap.watch(made, rows, view=view)
        self._places.append(places)

    @property
    def _bounded(self) -> bool:
        return self.objective.surrogate in ("ppo", None) and self.objective.ratio_level != "sequence"

    def look(self, rows: Sequence[TrainedRow], size: int) -> list[str]:
        """Reads off what every row of the step weighed. Returns what this rank has against it. Collective.

        rows: this rank's completions; the others of its `size` rows are fillers.
        """
        objections = self._run_on.objections({row.index: row.named for row in rows})
        parts, self._places = self._places, []
        for row in rows:
            row.measured(Measured(math.nan if self.shows else None, 0.0))
        try:
            seen = self._tap.take(scale=self.ranks * self._loss_scale)
        except LostGradient as error:
            objections.append(f"{error}: something took it away between the loss and the log-probabilities")
        else:
            by_place: dict[int, TrainedRow | None] = dict.fromkeys(range(size)) | {row.index: row for row in rows}
            try:
                objections += read_places(by_place, parts, seen) if self.shows else []
            except ValueError:
                reached = len({place for part in parts for place in part})
                objections.append(f"of the step's {size} rows on this rank, {reached} reached the loss")
        # FSDP averages over all ranks; those of a sequence group have a part of every row's gradient each.
        return objections + self.gradient_objections(
            1 / torch.distributed.get_world_size() / self._loss_scale, getattr(self._engine, "optimizer", None)
        )

    @property
    def _loss_scale(self) -> float:
        """The loss scale of fp16: the loss times it before backward, and gradients divided by it before clipping."""
        scaler = getattr(self._engine, "scaler", None)
        return 1.0 if scaler is None else float(scaler.get_scale())

    # ---- between backward and the optimizer

    def _hook_clipping(self, patches: Patches) -> None:
        """Has the engine's clipping tell what it multiplied the gradients with."""
        home = _defining(type(self._engine), "optimizer_step").__module__
        hook_clipping(self, self._engine.module, home, lambda: self._engine.optimizer_config.clip_grad, patches)


def hook_clipping(watch: StepProbe, module: Any, home: str, limit: Callable[[], Any], patches: Patches) -> None:
    """Has clipping tell what it multiplied the gradients with: FSDP1's is a method of the module, FSDP2's a function of
    verl's. home: the name of the Python module that calls it; limit: gives the bound of the norm."""
    owner, name = module, "clip_grad_norm_"
    if not hasattr(module, name):
        owner, name = sys.modules[home], "fsdp2_clip_grad_norm_"

    def clip(*arguments: Any, **options: Any) -> Any:
        norm = native(*arguments, **options)
        watch.clipped(norm, limit())
        return norm

    native = patches.read(owner, name, clip, what="its factor is recorded", why=MEASURED, exchanges=True)


def _defining(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))


class _View:
    """Log-probabilities of the engine, or their gradient, as (rows, response tokens)."""

    def __init__(self, micro_batch: Any) -> None:
        from verl.workers.utils.padding import no_padding_2_padding

        ids = micro_batch["input_ids"]
        count = ids.values().shape[0]
        # verl's own cut of the packed values, applied to their numbers; 0 is padding.
        numbers = no_padding_2_padding(torch.arange(1, count + 1, device=ids.device), micro_batch)
        self._places, self._real = (numbers - 1).clamp(min=0), numbers > 0
        self.width = int(numbers.shape[1])

    def __call__(self, packed: torch.Tensor) -> torch.Tensor:
        values = packed.values() if packed.is_nested else packed
        return torch.where(self._real, values[self._places], torch.zeros((), dtype=values.dtype, device=values.device))


def responses_of(micro_batch: Any) -> _View:
    """Makes (rows, response tokens) of what the engine packs: prompt and response, a value standing one place before
    its token."""
    return _View(micro_batch)


def objective_of(objective: Objective) -> Objective:
    """The objective with verl's own bound of k3, which no setting changes."""
    own = KL_CLAMP if objective.kl_estimator == "k3" else None
    return dataclasses.replace(objective, kl_clamp=own)


def surrogates(config: Any) -> dict[str, Surrogate]:
    """verl's own surrogates, for which the schema has names and no formulas. Source: verl 0.9.1 core_algos."""

    def dro(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return 0.5 * config.policy_loss.dro_beta * (new - old) ** 2 - new * advantages

    def sapo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        temperature = torch.where(advantages > 0, config.tau_pos, config.tau_neg)
        ratio = (new - old).clamp(-FURTHEST, FURTHEST).exp()
        return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantages

    def gpg(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return -new * advantages

    def gmpo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        low, high = (
            config.clip_ratio if bound is None else bound for bound in (config.clip_ratio_low, config.clip_ratio_high)
        )
        sign, log_ratio = advantages.sign(), new - old
        nearer = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-low, high))
        mean = (nearer * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        return (-advantages * mean.exp()).expand_as(new)

    return {"dro": dro, "sapo": sapo, "gpg": gpg, "gmpo": gmpo}
