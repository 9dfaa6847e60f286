"""The progress of a command: a bar on standard error, of all that takes over two seconds while someone looks. It is
gone at the end.

Its own file: four commands use it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import click

_T = TypeVar("_T")
PATIENCE_S = 2.0
"""Seconds without a bar."""
_LINE_ABOVE_ERASED = "\x1b[1A\x1b[2K"


def progress(items: Iterable[_T], length: int, label: str) -> Iterator[_T]:
    """The items, one after the other. label: `checked`, what the bar counts. None is shown in a pipe or a file."""
    if not sys.stderr.isatty():
        yield from items
        return
    started = time.monotonic()
    iterator = iter(items)
    done = 0
    for item in iterator:
        yield item
        done += 1
        if done < length and time.monotonic() - started >= PATIENCE_S:  # a bar of what is done says nothing
            break
    else:
        return
    with click.progressbar(length=length, file=sys.stderr, label=label) as bar:
        bar.update(done)
        for item in iterator:
            yield item
            bar.update(1)
    click.echo(_LINE_ABOVE_ERASED, nl=False, err=True)  # what is asked for stands alone on the screen


def labelled(label: str) -> Callable[[Iterable[_T], int], Iterator[_T]]:
    """`progress` of one label, for whoever takes the items and their number."""
    return lambda items, length: progress(items, length, label)
