"""The built site: its pages, what they link to, and a server on a loopback port."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("PDTLIB_SITE", ROOT / "_build/html"))
MISSING = "the site is not built: run `make book`"


@dataclass
class Html(HTMLParser):
    """What the tests need to know of a page's source."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    explorers: list[dict[str, str]] = field(default_factory=list)
    exercises: list[dict[str, str]] = field(default_factory=list)
    predictions: int = 0
    figures: int = 0
    redirects: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "data-explorer" in given:
            self.explorers.append(given)
        if "data-exercise" in given:
            self.exercises.append(given)
        if given.get("data-pdt") == "prediction":
            self.predictions += 1
        if tag == "meta" and given.get("http-equiv", "").lower() == "refresh":
            self.redirects = True
        if "data-figure" in given:
            self.figures += 1


@functools.cache
def parsed(page: str) -> Html:
    """The page's source, parsed."""
    html = Html()
    html.feed((SITE / page).read_text(encoding="utf-8"))
    return html


def pages() -> list[str]:
    """All pages, as paths below the site's folder, without the theme's own files and without redirections."""
    found = [path.relative_to(SITE) for path in SITE.rglob("*.html")]
    own = [path.as_posix() for path in found if path.parts[0] not in ("_static", "_sources", "vendor")]
    return sorted(page for page in own if not parsed(page).redirects)


PAGES = pages() or [MISSING]


def explorers() -> list[tuple[str, dict[str, str]]]:
    """(page, attributes) of every explorer of the site."""
    return [(page, given) for page in pages() for given in parsed(page).explorers]


def exercises() -> list[tuple[str, dict[str, str]]]:
    """(page, attributes) of every exercise of the site that runs in the browser."""
    found = [(page, given) for page in pages() for given in parsed(page).exercises]
    return [(page, given) for page, given in found if given.get("data-runs-in") == "browser"]


def split(page: str, link: str) -> tuple[str, str] | None:
    """(page, anchor) that an internal link leads to; ``None`` for another host or a mail address."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return page, unquote(parts.fragment)
    target = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path)))
    return target, unquote(parts.fragment)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def serve() -> http.server.ThreadingHTTPServer:
    """The site on a free port of 127.0.0.1, served by a thread until ``shutdown()``."""
    handler = functools.partial(_Handler, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
