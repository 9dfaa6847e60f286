"""Without flash-attn EasyR1 0.3.0 and 0.3.1 have log-probabilities of the wrong sign, and no worker is attached to.
Later releases are right."""

from __future__ import annotations

from pathlib import Path

import proofs
from started import measured_by


def test_log_probabilities_of_the_wrong_sign_are_refused(place: Path, checkout: Path, release: str) -> None:
    reasons = measured_by(Path(__file__).with_name("signs.py"), place, checkout, "1")
    if release in proofs.WITHOUT:
        assert reasons.keys() == {"log_probabilities"}
        assert "pip install flash-attn" in reasons["log_probabilities"]
    else:
        assert reasons == {}
