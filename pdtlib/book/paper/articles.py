"""The site's articles, made plain: each page's text as XHTML, its figures as SVG."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdtlib.book import browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPT = Path(__file__).with_name("article.js").read_text(encoding="utf-8")
WIDTH_PX = 1100
# Everything moves on the first, and the reference is long and kept up with the code.
LEFT_OUT = re.compile(r"chapters/(playground|api.*)\.html")
_SIDEBAR = re.compile(r'<nav class="bd-links[^"]*".*?</nav>', re.DOTALL)
_LINK = re.compile(r'<a class="reference internal" href="([^"#]+)"')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Article:
    """A page: ``xhtml`` is one element, its ids begin with ``name``; ``images`` are SVG by file name."""

    name: str
    title: str
    xhtml: str
    images: dict[str, str]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def opened(site: Path) -> Iterator[tuple[Page, str]]:
    """A browser's page on the site, and the site's address."""
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=str(browser.find()), headless=True, args=list(browser.FLAGS)
            )
            page = chromium.new_page(viewport={"width": WIDTH_PX, "height": 900}, color_scheme="light")
            page.set_default_timeout(180_000)
            yield page, f"http://127.0.0.1:{server.server_address[1]}"
            chromium.close()
    finally:
        server.shutdown()


def chapters(site: Path) -> list[str]:
    """The pages that go on paper, in the order of the table of contents, the first page first."""
    first = (site / "intro.html").read_text(encoding="utf-8")
    sidebar = _SIDEBAR.search(first)
    if sidebar is None:
        raise ValueError(f"{site}/intro.html has no table of contents")
    found = dict.fromkeys(("intro.html", *_LINK.findall(sidebar[0])))
    return [path for path in found if not LEFT_OUT.fullmatch(path)]


def book_title(site: Path) -> str:
    """The title of the book."""
    found = _TITLE.search((site / "intro.html").read_text(encoding="utf-8"))
    assert found is not None
    return unescape(found[1]).split(" — ")[0].strip()


def read(page: Page, address: str, paths: Sequence[str], *, mathml: bool) -> Iterator[Article]:
    """The articles of those pages. Formulas are MathML, or TeX for MathJax."""
    names = {path: name_of(path) for path in paths}
    for path, name in names.items():
        page.goto(f"{address}/{path}")
        page.wait_for_load_state("networkidle")
        found = page.evaluate(SCRIPT, {"name": name, "names": names, "mathml": mathml})
        yield Article(
            name=name,
            title=found["title"],
            xhtml=found["xhtml"],
            images={image["name"]: image["svg"] for image in found["images"]},
        )


def name_of(path: str) -> str:
    """A page's name on paper; its ids and its files begin with it."""
    name = path.removeprefix("chapters/").removesuffix(".html").replace("_", "-")
    return f"chapter-{name}" if name[0].isdigit() else name
