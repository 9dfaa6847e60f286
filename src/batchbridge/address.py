"""The project's addresses, which its owner sets here and nowhere else.

`python docs/make_address.py` writes them into the pages and files that name them; `hatch_build.py` makes the links of
what PyPI shows. While a placeholder stands here, `BATCHBRIDGE_RELEASE=1 nox -s build` fails. Nothing is imported.
"""

SOURCE = "https://github.com/OWNER/batchbridge"
"""The repository: its files, tags, issues and the GitHub action."""
SITE = "https://OWNER.github.io/batchbridge"
"""The site that `nox -s docs` builds: documentation and playground."""
PLACEHOLDER = "OWNER"
"""The word that stands above until an owner has set both."""


def are_set() -> bool:
    """Whether an owner has set both."""
    return PLACEHOLDER not in SOURCE + SITE


def rule_page(code: str) -> str:
    """The address of a rule's page on the site."""
    return f"{SITE}/rules/{code}/"
