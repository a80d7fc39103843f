"""The EPUB (version 3): a chapter a file, figures as SVG, formulas as MathML."""

from __future__ import annotations

import re
import uuid
import zipfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pdtlib.book.paper.articles import Article, book_title, chapters, opened, read

STYLE = Path(__file__).with_name("paper.css").read_text(encoding="utf-8")
TIME = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same book
MODIFIED = "2026-01-01T00:00:00Z"
CONTAINER = """<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="book/book.opf" media-type="application/oebps-package+xml"/></rootfiles>
</container>
"""
PAGE = """<?xml version="1.0" encoding="utf-8"?>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">
<head><title>{title}</title><link rel="stylesheet" type="text/css" href="style.css"/></head>
<body>{body}</body>
</html>
"""
_TO = re.compile(r'href="#([\w-]+?)(--[^"]*)?"')


def write(site: Path, target: Path, *, only: Sequence[str] = ()) -> Path:
    """Make an EPUB of the built ``site`` at ``target``, or of ``only`` some of its pages; returns ``target``.

    Raises FileNotFoundError where there is no site or no Chromium.
    """
    with opened(site) as (page, address):
        articles = list(read(page, address, only or chapters(site), mathml=True))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(book_title(site), articles).items():
            member = zipfile.ZipInfo(name, date_time=TIME)
            # The type comes first and uncompressed, so that it can be read without unpacking.
            member.compress_type = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return target


def files(title: str, articles: Sequence[Article]) -> dict[str, str]:
    """All files of the archive by name, in the order in which they stand there."""
    made = {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER}
    made["book/book.opf"] = package(title, articles)
    entries = "".join(
        f'<li><a href="{article.name}.xhtml">{escape(article.title)}</a></li>' for article in articles
    )
    contents = f'<nav epub:type="toc" id="toc"><h1>{escape(title)}</h1><ol>{entries}</ol></nav>'
    made["book/contents.xhtml"] = PAGE.format(title=escape(title), body=contents)
    made["book/style.css"] = STYLE
    for article in articles:
        body = _TO.sub(_to_file, article.xhtml)
        made[f"book/{article.name}.xhtml"] = PAGE.format(title=escape(article.title), body=body)
        made |= {f"book/{name}": svg for name, svg in article.images.items()}
    return made


def _to_file(link: re.Match[str]) -> str:
    """A link inside the book leads to a place in a chapter's file."""
    name, place = link[1], link[2] or ""
    return f'href="{name}.xhtml{f"#{name}{place}" if place else ""}"'


def package(title: str, articles: Sequence[Article]) -> str:
    """The package document: what the book is, all its files, and the order of reading."""
    identity = uuid.uuid5(uuid.NAMESPACE_OID, title)
    items = [
        '<item id="contents" href="contents.xhtml" media-type="application/xhtml+xml" properties="nav"/>',
        '<item id="style" href="style.css" media-type="text/css"/>',
    ]
    for article in articles:
        held = [name for name, tag in (("mathml", "<math"), ("svg", "<svg")) if tag in article.xhtml]
        has = f' properties="{" ".join(held)}"' if held else ""
        items.append(
            f'<item id="{article.name}" href="{article.name}.xhtml" media-type="application/xhtml+xml"{has}/>'
        )
        items += [
            f'<item id="{name.removesuffix(".svg")}-svg" href="{name}" media-type="image/svg+xml"/>'
            for name in article.images
        ]
    order = "".join(f'<itemref idref="{article.name}"/>' for article in articles)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<dc:identifier id="id">urn:uuid:{identity}</dc:identifier><dc:title>{escape(title)}</dc:title>'
        f'<dc:language>en</dc:language><meta property="dcterms:modified">{MODIFIED}</meta></metadata>'
        f"<manifest>{''.join(items)}</manifest>"
        f'<spine><itemref idref="contents"/>{order}</spine></package>\n'
    )
