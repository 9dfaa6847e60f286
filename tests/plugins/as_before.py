"""The plugins and the tutorial's adapter as they were before the names changed, from git: `nox -s plugins_before`.

    python tests/plugins/as_before.py FOLDER

Writes the tree of `COMMIT` into FOLDER/tree and, by that tree's own commands, what the tutorial of then builds into
FOLDER/tutorial. Prints the folder of each distribution; the session runs their tests, unmodified, on today's tree.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "4c7f3ec1f0e40c5ed13d736a5cf04709115aff79"
"""The last commit before public names changed (`batchbridge.renamed`)."""
TAKEN = ("plugins", "examples/third_party_adapter", "src", "adapters", "docs", "README.md")
FOLLOW = """
import sys
from pathlib import Path
sys.path.insert(0, "docs")
import make_outputs
folder = Path(sys.argv[1])
folder.mkdir()
reader = make_outputs.Reader(folder)
for block in make_outputs.blocks(Path("docs/tutorial.md")):
    for command, expected, actual in reader.does(block):
        assert make_outputs.fits(expected, actual), f"$ {command}\\n{actual}"
"""
"""What follows the page from its first block to its last, in its own tree."""


def main(folder: Path) -> None:
    words = ("git", "archive", COMMIT, *TAKEN)
    archive = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=False).stdout
    if not archive:
        sys.exit(f"this clone has no commit {COMMIT[:8]}: git fetch --unshallow")
    tree, built = folder / "tree", folder / "tutorial"
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(tree, filter="data")
    paths = os.pathsep.join(str(tree / name) for name in ("src", "adapters"))
    own = {**os.environ, "PYTHONPATH": paths}
    subprocess.run((sys.executable, "-c", FOLLOW, str(built)), cwd=tree, env=own, check=True)
    print(*sorted((tree / "plugins").glob("*/")), tree / "examples" / "third_party_adapter", sep="\n")
    print(*sorted(file.parent for file in built.glob("*/pyproject.toml")), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
