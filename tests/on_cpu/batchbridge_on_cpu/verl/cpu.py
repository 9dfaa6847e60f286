"""verl on the CPU for tests: what `batchbridge_verl.on_cpu` declares, and packed rows."""

from __future__ import annotations

import batchbridge_on_cpu.verl.packed  # noqa: F401 - an attention of its own
import batchbridge_verl.on_cpu.cpu  # noqa: F401 - verl on the CPU
