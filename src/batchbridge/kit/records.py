"""`dataclass` as adapters use it for records of a command: see `batchbridge.frozen`. Standard library only."""

from batchbridge.frozen import dataclass as dataclass
