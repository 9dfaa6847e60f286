"""A process of the group of `batchbridge run` that says which signals the whole group had; see
`batchbridge.running.signals`, which starts it. It ends when its standard input does.

Its own file: a process runs it, and imports nothing else of ours.
"""

import os
import signal
import sys


def _say(number: int, frame: object) -> None:
    os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        signal.signal(int(word), _say)
    os.write(1, b"0\n")
    os.read(0, 1)
