"""Laws of native steps, of trainers, and of what reading imports."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from fractions import Fraction

from batchbridge.testing.hostile import HostileObject
from batchbridge.testing.laws import MOST_STEPS, Case, Laws, ValidCase, scripted_tokens, spec_of, vacuous


class StepLaws(Laws):
    """Laws of native steps, of trainers, and of what reading imports."""

    # ---- native steps

    def test_native_steps_place_every_completion_once_per_pass(self, valid_case: ValidCase) -> None:
        counts = Counter((row.rollout, row.pass_index, row.prompt, row.sample) for row in self._rows(valid_case))
        twice = [key for key, count in counts.items() if count > 1]
        assert not twice, f"(rollout, pass, prompt, sample) trained more than once: {twice[:5]}"

    def test_native_steps_train_a_whole_rollout_in_whole_steps(self, valid_case: ValidCase) -> None:
        spec, steps = spec_of(self._valid(valid_case)), self._native_steps(valid_case)
        size, step = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
        passes = Counter((row.rollout, row.pass_index) for one in steps for row in one.rows)
        if not size or (spec.rollout.prompts_per_rollout or 0) > self._dataset_size(valid_case):
            vacuous("the dataset fills no rollout")
        assert steps, "no step at all"
        ended = len(steps) < MOST_STEPS or len(passes) > 1
        left = size % step if step and spec.order.last_optimizer_step == "drop" else 0
        # A remainder that is dropped at the end of all passes may lie behind the first one.
        whole = {size - left} if spec.optimizer_step.step_may_span == "none" else range(size - left, size + 1)
        trained = passes[0, 0] in whole or not ended
        assert trained, f"{passes[0, 0]} completions of {size} in the first pass, and {left} may be dropped"
        assert not step or step > size or len(steps[0].rows) == step, f"{len(steps[0].rows)} in a step of {step}"

    def test_native_steps_stay_inside_the_run(self, valid_case: ValidCase) -> None:
        spec, dataset_size = spec_of(self._valid(valid_case)), self._dataset_size(valid_case)
        for row in self._rows(valid_case):
            assert 0 <= row.rank < spec.topology.world_size, f"rank outside the world: {row}"
            assert 0 <= row.prompt < dataset_size, f"prompt outside the dataset: {row}"
            assert 0 <= row.sample < spec.rollout.completions_per_prompt, f"sample outside its group: {row}"
            assert 0 <= row.pass_index < spec.optimizer_step.passes_per_rollout, f"pass outside the rollout: {row}"
            assert min(row.rollout, row.micro_batch) >= 0, f"negative: {row}"

    def test_native_weights_are_exact_or_left_open(self, valid_case: ValidCase) -> None:
        for row in self._rows(valid_case):
            exact = row.weight is None or (isinstance(row.weight, Fraction) and row.weight >= 0)
            assert exact, f"weight {row.weight!r} is neither a Fraction from 0 nor None: {row}"

    def test_a_completion_without_tokens_weighs_nothing(self, valid_case: ValidCase) -> None:
        for row in self._rows(valid_case):
            if scripted_tokens(row.prompt, row.sample) == 0:
                assert not row.weight, f"no token, but a weight: {row}"

    def test_native_steps_are_counted_from_zero(self, valid_case: ValidCase) -> None:
        indices = [step.index for step in self._native_steps(valid_case)]
        assert indices == list(range(len(indices))), f"indices {indices[:10]}"

    def test_native_steps_are_the_same_twice(self, valid_case: ValidCase) -> None:
        assert self._native_steps(valid_case) == self._native_steps(valid_case), "native_steps varies"

    # ---- the running trainer, and imports

    def test_strangers_are_not_owned(self) -> None:
        for stranger in (None, 1, object(), type, HostileObject()):
            assert self.adapter_class().owns(stranger) is False, f"owns {type(stranger).__name__}"

    def test_reading_imports_no_framework(self) -> None:
        cases: list[Case] = [*self.valid, *self.invalid, *self.undecided]
        plain = [case for case in cases if case.source.native is None]
        name = self.adapter_class.__qualname__
        work = pickle.dumps((self.adapter_class.__module__, name, [(c.source, c.context) for c in plain]))
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTS, json.dumps(sys.path)], input=work, capture_output=True, check=False
        )
        assert done.returncode == 0, f"reading in a process of its own failed:\n{done.stderr.decode()}"
        imported = sorted(set(json.loads(done.stdout)) & set(self.framework_modules))
        assert not imported, f"reading imported {imported}"


_IMPORTS = """
import json, pickle, sys
sys.path[:] = json.loads(sys.argv[1])
import importlib
module, name, cases = pickle.load(sys.stdin.buffer)
adapter = importlib.import_module(module)
for part in name.split("."):
    adapter = getattr(adapter, part)
adapter = adapter()
for source, context in cases:
    adapter.detect(source)
    reading = adapter.read(source, context)
    adapter.check(reading)
    if reading.spec is not None:
        adapter.enforcement(reading)
        try:
            adapter.write(reading.spec)
        except ValueError:
            pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
