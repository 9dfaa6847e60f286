"""The former name of `batchbridge.kit.omegaconf_settings`.

Its own file: an old import path is a file, until the release that `batchbridge.renamed` names.
"""

from typing import TYPE_CHECKING

if not TYPE_CHECKING:  # a type checker takes the new name
    from batchbridge.renamed import old_names

    __getattr__ = old_names(__name__)
