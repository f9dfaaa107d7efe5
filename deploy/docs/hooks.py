# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: links out of docs/ point to the repository; the navigation has the order of the links in docs/index.md."""

import posixpath
import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *```)sh norun$", re.MULTILINE)
TITLES = {"how-to": "How-to guides", "tutorials": "Tutorials", "reference": "Reference", "explanation": "Explanation"}


def on_page_markdown(markdown, page, config, files):
    """Replace links to files of the repository that are not part of the site, and remove the mark norun of code blocks."""
    top = Path(config["config_file_path"]).parent

    def replace(match):
        target, fragment = match[1], match[2] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), target))
        if path.startswith("docs/") or not (top / path).exists():
            return match[0]
        kind = "tree" if (top / path).is_dir() else "blob"
        return f"]({config['repo_url']}/{kind}/main/{path}{fragment})"

    return FENCE.sub(r"\1sh", LINK.sub(replace, markdown))


def on_nav(nav, config, files):
    """Sort pages and sections by the first link to them in docs/index.md."""
    index = (Path(config["docs_dir"]) / "index.md").read_text()
    order = {posixpath.normpath(m[1]): i for i, m in reversed(list(enumerate(LINK.finditer(index))))}

    def position(item):
        if item.is_section:
            return min(map(position, item.children), default=len(order))
        if item.is_page:
            return -1 if item.file.src_uri == "index.md" else order.get(item.file.src_uri, len(order))
        return len(order)

    def sort(items):
        items.sort(key=position)
        for item in items:
            if item.is_section:
                item.title = TITLES.get(item.title.lower().replace(" ", "-"), item.title)
                sort(item.children)

    sort(nav.items)
    return nav
