"""Files of settings as text and as values: YAML, JSON and TOML, with their limits; the folders of their repository."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from batchbridge.reading.yaml_json import Document, parse_json, parse_yaml, refuse

MAX_BYTES = 1 << 20
"""Largest file that is read (bytes). The largest recipes of the supported frameworks have some 10 KiB."""
_OPENED = ("/dev/fd/", "/proc/self/fd/")
"""Folders where a shell puts what it has opened, `<(cat run.sh)`; any other pipe may wait for ever for its writer."""
LEVELS = 8
"""Folders that are looked through where no repository's root is among them."""


def folders_above(file: Path) -> Iterator[Path]:
    """The folder of a file and those above it, up to the root of its repository; without one, `LEVELS` of them."""
    for folder in file.resolve().parents[:LEVELS]:
        yield folder
        if is_root(folder):
            return


def is_root(folder: Path) -> bool:
    """Whether a folder is the root of a repository."""
    return (folder / ".git").exists()


def root_of(file: Path) -> Path | None:
    """The root of the repository that a file is in; None: there is none within `LEVELS` folders."""
    return next(filter(is_root, folders_above(file)), None)


def parse_document(text: str, suffix: str, file: str) -> Document:
    """The settings in a text, which is YAML where the suffix says nothing else. Raises `Refused`."""
    if suffix == ".toml":
        from batchbridge.reading.toml import parse_toml

        return parse_toml(text, file)
    return (parse_json if suffix == ".json" else parse_yaml)(text, file)


def read_text(path: Path, file: str, most: int = MAX_BYTES) -> str:
    """The text of a file. Raises `Refused` where it is missing, no regular file, no text, or above `most` bytes."""
    return decoded(read_bytes(path, file, most), file, most)


def read_bytes(path: Path, file: str, most: int) -> bytes:
    """The bytes of a file. Raises `Refused` where it is missing, no regular file, or above `most` bytes."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            refuse("BB001", "this is a directory; a file was expected (batchbridge check takes folders, too)", file)
        piped = stat.S_ISFIFO(status.st_mode) and file.startswith(_OPENED)
        if not (stat.S_ISREG(status.st_mode) or piped):
            refuse("BB001", "this is not a regular file (a pipe or a device)", file)
        if status.st_size > most:
            refuse("BB002", f"the file has {status.st_size:,} bytes; at most {most:,} are read", file)
        with path.open("rb") as stream:
            return stream.read(most + 1)
    except FileNotFoundError:
        refuse("BB001", "there is no such file", file)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        refuse("BB001", f"the file cannot be read: {reason}", file)


def _is_chinese(data: bytes) -> bool:
    """Whether bytes that are no UTF-8 are Chinese in the encoding of editors there (GBK, as GB18030)."""
    try:
        text = data.decode("gb18030")
    except UnicodeDecodeError:
        return False
    foreign = [character for character in text if not character.isascii()]
    return bool(foreign) and all("\u3000" <= character <= "\u9fff" or character >= "\uff00" for character in foreign)


def decoded(data: bytes, file: str, most: int = MAX_BYTES) -> str:
    """`data` as text. Raises `Refused`."""
    if len(data) > most:
        refuse("BB002", f"the file has more than the {most:,} bytes that are read", file)
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        name = encoding.removesuffix("-sig").upper()
        save = "it reads as GBK: save it as UTF-8" if _is_chinese(data) else None
        refuse("BB003", f"this is not text: byte {error.start} is not {name}", file, line, save)
    if (nul := text.find("\0")) >= 0:
        refuse("BB003", "this is not text: it contains a NUL character", file, text.count("\n", 0, nul) + 1)
    return text
