"""`dataclass` as adapters use it for records of a command: see `batchbridge.frozen`. Standard library only.

Its own file: adapters import only `batchbridge` and `batchbridge.kit`.
"""

from batchbridge.frozen import dataclass as dataclass
