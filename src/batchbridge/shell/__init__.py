"""A reader of bash launch scripts that executes nothing."""

from batchbridge.shell.reader import MAX_BYTES, read_script
from batchbridge.shell.script import Argument, Command, Remark, Script
from batchbridge.shell.values import Unknown

__all__ = ["MAX_BYTES", "Argument", "Command", "Remark", "Script", "Unknown", "read_script"]
