"""The start of every Python process of a command that `batchbridge run` started; see `batchbridge.running.launch`.

Its own file: Python imports it by this name.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _own_sitecustomize() -> None:
    """The `sitecustomize` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs every process its import
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]  # noqa: PTH100 - see above
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_own_sitecustomize()
try:
    from batchbridge.running.launch import start
except ImportError:
    pass  # another interpreter's environment: nothing of ours can run there
else:
    try:
        start()
    except Exception as error:  # Python itself would print it, and go on natively
        text = f"batchbridge: this process cannot be reached, and does not run: {type(error).__name__}: {error}"
        print(f"{text} (another version of batchbridge than the command's?)", file=sys.stderr, flush=True)
        os._exit(1)
