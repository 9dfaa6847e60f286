"""A ledger that is not a local folder: its files are fetched by fsspec, which knows the stores and reads them in
parallel.

Whoever names a ledger by a URL (`s3://bucket/run`, `gs://`, `memory://`, `file://`) needs the extra `remote`, and for
some stores a package of theirs (s3fs, gcsfs), which fsspec names. A folder of a shared file system is a local one.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from pathlib import Path

from batchbridge.errors import LedgerError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")


def is_url(folder: Path | str) -> bool:
    """Whether a ledger is named by a URL."""
    return isinstance(folder, str) and _URL.match(folder) is not None


class FetchedLedger:
    """The files of a ledger as they are now, in a temporary folder that goes with this object.

    folder: that folder. names: local path to the URL, which messages name. Takes as much space as the ledger has, in
    the folder for temporary files (TMPDIR). Raises `LedgerError`.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec import url_to_fs
        except ModuleNotFoundError as error:
            if error.name != "fsspec":
                raise
            raise LedgerError("a URL needs fsspec: pip install 'batchbridge[remote]'", url) from None
        self.folder = Path(tempfile.mkdtemp(prefix="batchbridge-ledger-"))
        forget = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)  # at the latest at exit
        try:
            store, path = url_to_fs(url)
            found = sorted(store.glob(f"{path.rstrip('/')}/rank-*.jsonl"))
            local = [self.folder / one.rpartition("/")[2] for one in found]
            if found:
                store.get(found, [str(one) for one in local])  # many at once, where the store allows it
        except Exception as error:  # each store raises what its own package does
            forget()
            raise LedgerError(f"it cannot be fetched: {type(error).__name__}: {error}", url) from None
        self.names = {one: f"{url.rstrip('/')}/{one.name}" for one in local}
