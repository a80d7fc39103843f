"""The PDF: all articles in one document, typeset by MathJax and printed by Chromium, with an outline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pdtlib.book.paper.articles import Article, book_title, chapters, opened, read

if TYPE_CHECKING:
    from playwright.sync_api import Page

STYLE = Path(__file__).with_name("paper.css").read_text(encoding="utf-8")
PAGES = """
@page { size: A4; margin: 20mm 18mm 22mm; }
body { font-family: "Liberation Serif", "Noto Serif", Georgia, serif; font-size: 10.5pt; color: #222; }
pre, code { font-family: "DejaVu Sans Mono", "Liberation Mono", monospace; }
.chapter { break-before: page; }
.front { text-align: center; padding-top: 60mm; }
.front p { color: #5f6670; }
.contents { break-before: page; }
.contents li { margin: 0.35em 0; }
"""
FOOTER = (
    '<div style="width:100%;font-size:8px;text-align:center;color:#5f6670">'
    '<span class="pageNumber"></span></div>'
)
# Formulas stand in elements of class math; all else is left alone, code above all.
MATHJAX = 'window.MathJax = {options: {ignoreHtmlClass: "chapter", processHtmlClass: "math"}}'
DOCUMENT = "_paper.html"  # never a file: the browser is answered from here


def write(site: Path, target: Path, *, only: Sequence[str] = ()) -> Path:
    """Print the built ``site`` to ``target``, or ``only`` some of its pages; returns ``target``.

    Raises FileNotFoundError where there is no site or no Chromium.
    """
    with opened(site) as (page, address):
        paths = only or chapters(site)
        articles = list(read(page, address, paths, mathml=False))
        _show(page, address, document(book_title(site), articles))
        page.pdf(
            path=str(target),
            prefer_css_page_size=True,
            print_background=True,
            outline=True,
            tagged=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
        )
    return target


def document(title: str, articles: Sequence[Article]) -> str:
    """The whole book as one HTML document, its images inside."""
    contents = "".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in articles)
    bodies = []
    for article in articles:
        body = article.xhtml
        for name, svg in article.images.items():
            body = body.replace(f'src="{name}"', f'src="data:image/svg+xml,{quote(svg)}"')
        bodies.append(body)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}{PAGES}</style>"
        f"<script>{MATHJAX}</script>"
        '<script defer src="vendor/mathjax/tex-mml-chtml.js"></script></head><body>'
        f'<div class="front"><h1>{escape(title)}</h1><p>The text with its figures. The site has the '
        "explorers, the exercises' editors and the playground.</p></div>"
        f'<nav class="contents"><h2>Contents</h2><ul>{contents}</ul></nav>{"".join(bodies)}</body></html>'
    )


def _show(page: Page, address: str, html: str) -> None:
    """Open the document as a page of the site, so that it finds MathJax, and wait until all is typeset."""
    page.route(f"{address}/{DOCUMENT}", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"{address}/{DOCUMENT}")
    page.evaluate("() => window.MathJax.startup.promise")
    page.evaluate("() => Promise.all([...document.images].map((image) => image.decode()))")
