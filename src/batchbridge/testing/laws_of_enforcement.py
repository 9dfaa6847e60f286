"""Laws about `enforcement`: what `attach` refuses is said of the configuration, and never called enforced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.enforcement import Enforcement, enforcement_of
from batchbridge.reading.read import read_source
from batchbridge.testing.fields import CHANGES
from batchbridge.testing.laws import Case, InvalidCase, Laws, ValidCase, spec_of, vacuous

if TYPE_CHECKING:
    from batchbridge.kit.lifecycle import Runtime


class EnforcementLaws(Laws):
    """The laws of this module."""

    def test_enforcement_is_told_in_full(self, any_case: Case) -> None:
        said = self._enforcement(any_case)
        assert isinstance(said, Enforcement), f"enforcement gave a {type(said).__name__}"
        assert not any(one.name == "adapter" for one in said.obstacles), f"it raised: {said.obstacles}"
        for one in said.obstacles:
            for name in ("name", "reason", "remedy"):
                assert getattr(one, name).strip(), f"obstacle {one.name}: no {name}"
        assert said.evidence is not None or said.verdict != "enforced", "enforced, and nothing speaks for the code"
        assert json.dumps(said.to_dict()) == json.dumps(self._enforcement(any_case).to_dict()), "enforcement varies"

    def test_an_invalid_case_is_not_enforced(self, invalid_case: InvalidCase) -> None:
        assert self._enforcement(invalid_case).verdict in ("refused", "unknown")

    def test_an_adapter_without_running_trainers_enforces_nothing(self, valid_case: ValidCase) -> None:
        if self.adapter_class.runtime or self.adapter_class.attach is not Adapter.attach:
            vacuous("the adapter has running trainers")
        spec_of(self._valid(valid_case))
        assert self._enforcement(valid_case).verdict == "refused", "nothing attaches, and it is not refused"
        promised = {path for path, value in CHANGES if self.adapter_class().enforces(path, value)}
        assert not promised, f"nothing attaches, and `enforces` promises {', '.join(sorted(promised))}"

    def test_every_refusal_has_a_configuration(self) -> None:
        runtime = self._runtime()
        refusals = {one.name for one in runtime.refusals}
        cases, others = set(self.refused), set(self.refused_otherwise)
        assert not refusals - cases - others, f"no configuration for {sorted(refusals - cases - others)}"
        assert not (cases | others) - refusals, f"no such refusal: {sorted((cases | others) - refusals)}"
        assert not cases & others, f"both: {sorted(cases & others)}"

    def test_what_is_refused_is_not_called_enforced(self, refused_case: str) -> None:
        said = self._enforcement(self.refused[refused_case])
        assert refused_case in {one.name for one in said.obstacles}, f"not told: {said.to_dict()}"
        assert said.verdict != "enforced"

    def test_a_refusal_is_not_told_of_everything(self, refused_case: str) -> None:
        told = [{one.name for one in self._enforcement(case).obstacles} for case in self.valid]
        told += [{one.name for one in self._enforcement(case).obstacles} for case in self.refused.values()]
        assert any(refused_case not in names for names in told), "told of every configuration"

    def _enforcement(self, case: Case) -> Enforcement:
        adapter = self.adapter_class()
        return enforcement_of(adapter, read_source(case.source, adapter, case.context))

    def _runtime(self) -> Runtime:
        if not self.adapter_class.runtime:
            vacuous("the adapter has no runtime")
        runtime: Runtime = self.adapter_class()._runtime()
        return runtime
