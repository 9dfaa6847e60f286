"""A reader of Python programs and notebooks that executes nothing: the objects that they build, and their arguments."""

from pyread.arguments import OPEN
from pyread.notebook import code_of_notebook
from pyread.program import NotPython, Program, read_python
from pyread.values import Call, Instance, Place, UnknownValue, unknown_in

__all__ = [
    "OPEN",
    "Call",
    "Instance",
    "NotPython",
    "Place",
    "Program",
    "UnknownValue",
    "code_of_notebook",
    "read_python",
    "unknown_in",
]
