"""The two languages of the site, a hook of mkdocs (mkdocs.yml): a page that exists in both has the theme's own switch
between them, and the words of the theme around a Chinese page are Chinese, as its `lang` attribute says."""

from __future__ import annotations

from typing import Any

FOLDER = "zh/"
HOME = "index.md"


def on_page_context(context: dict[str, Any], *, page: Any, config: Any, nav: Any) -> dict[str, Any]:
    """The context of one page. The theme reads language and switch from the configuration, page after page."""
    chinese = page.file.src_uri.startswith(FOLDER)
    own = page.file.src_uri.removeprefix(FOLDER)
    there = {one.file.src_uri: one.url for one in nav.pages}
    both = own in there and f"{FOLDER}{own}" in there
    config.theme["language"] = "zh" if chinese else "en"
    config.extra["alternate"] = (
        [
            {"name": "English", "link": there[own] or ".", "lang": "en"},
            {"name": "\u4e2d\u6587", "link": there[f"{FOLDER}{own}"], "lang": "zh"},
        ]
        if both
        else None
    )
    return context
