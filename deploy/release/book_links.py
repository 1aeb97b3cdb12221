"""Preprocessor of the book: links that leave docs/ lead to the sources at SOURCES, a URL that ends with a revision, or are their text."""

import json
import os
import posixpath
import re
import sys

SOURCES = os.environ.get("SOURCES", "")
if sys.argv[1:2] == ["supports"]:
    sys.exit(0)


def mended(directory, match):
    text, path, anchor = match.groups(default="")
    target = posixpath.normpath(posixpath.join("docs", directory, path))
    if "://" in path or target.startswith("docs/"):
        return match[0]
    return f"[{text}]({SOURCES}/{target}{anchor})" if SOURCES else text


def mend(part):
    if isinstance(part, dict) and "Chapter" in part:
        chapter = part["Chapter"]
        directory = posixpath.dirname(chapter.get("path") or "")
        link = r"\[([^\[\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)"
        chapter["content"] = re.sub(link, lambda match: mended(directory, match), chapter["content"])
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else []:
        mend(child)


_, book = json.load(sys.stdin)
mend(book)
json.dump(book, sys.stdout)
