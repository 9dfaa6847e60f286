"""A reader of bash launch scripts that executes nothing."""

from bashread.reader import MAX_BYTES, read_script
from bashread.script import Argument, Command, Remark, ScriptCommands
from bashread.values import DEVICES_OF_A_NODE, Unknown

__all__ = [
    "DEVICES_OF_A_NODE",
    "MAX_BYTES",
    "Argument",
    "Command",
    "Remark",
    "ScriptCommands",
    "Unknown",
    "read_script",
]
