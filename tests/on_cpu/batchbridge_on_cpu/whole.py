"""Scripted rollouts whose every completion has tokens that are trained, for trainers that have no others."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.testing.tiny import ScriptedRollouts


def rollouts(environment: Mapping[str, str]) -> ScriptedRollouts:
    """The script that engines play, see `ScriptedRollouts.of_environment`."""
    return ScriptedRollouts(empty=frozenset())
