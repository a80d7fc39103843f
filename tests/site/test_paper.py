"""The book on paper, made of two pages of the site: nothing is lost, all is inside and well formed."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pypdf
import pytest
from site_under_test import PAGES, SITE, parsed

from pdtlib.book.paper import downloads, epub, pdf
from pdtlib.book.paper.articles import chapters, name_of

CHAPTER = next((page for page in PAGES if "02_data_parallel" in page), PAGES[0])
CHOSEN = ("intro.html", CHAPTER)
NAME = name_of(CHAPTER)
HTML = "{http://www.w3.org/1999/xhtml}"
MATH = "{http://www.w3.org/1998/Math/MathML}math"
OPF = "{http://www.idpf.org/2007/opf}"


def written(write, target):
    """Write the chosen pages, in a thread: in this one the tests' own browser has its loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(write, SITE, target, only=CHOSEN).result()


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    return pypdf.PdfReader(written(pdf.write, tmp_path_factory.mktemp("paper") / "book.pdf"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = written(epub.write, tmp_path_factory.mktemp("paper") / "book.epub")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_every_chapter_goes_on_paper_in_its_order():
    paths = chapters(SITE)
    numbered = [path for path in paths if path.startswith("chapters/") and path[9:11].isdigit()]
    assert paths[0] == "intro.html"
    assert numbered == sorted(page for page in PAGES if page.startswith("chapters/") and page[9:11].isdigit())
    assert len(numbered) == 10


def test_the_pdf_has_the_text_the_formulas_and_an_outline(printed):
    text = "\n".join(page.extract_text() for page in printed.pages)
    assert len(printed.pages) > 15
    assert "ZeRO" in text
    assert "\\(" not in text, "a formula is not typeset"
    assert "\\frac" not in text

    def titles(entries):
        for entry in entries:
            yield from titles(entry) if isinstance(entry, list) else [entry.title]

    outline = list(titles(printed.outline))
    assert sum(title.startswith("2. ") for title in outline) == 1
    assert len(outline) > 15


def test_the_pdf_draws_every_figure_and_explorer(printed):
    """A figure is an image of its own; a chapter's captions and numbers stand beside it."""
    text = " ".join(page.extract_text() for page in printed.pages)
    for given in parsed(CHAPTER).explorers:
        assert given["data-title"].split(",")[0] in text
    assert "Compare with this" not in text, "a button stands on paper"


def test_the_epub_opens_with_its_type_and_lists_every_file(archive):
    names = archive.namelist()
    assert names[0] == "mimetype"
    assert archive.getinfo("mimetype").compress_type == zipfile.ZIP_STORED
    assert archive.read("mimetype") == b"application/epub+zip"
    package = ElementTree.fromstring(archive.read("book/book.opf"))
    listed = {item.get("href"): item for item in package.iter(f"{OPF}item")}
    inside = {name.removeprefix("book/") for name in names if name.startswith("book/")}
    assert set(listed) == inside - {"book.opf"}
    ids = [item.get("id") for item in listed.values()]
    assert len(set(ids)) == len(ids)
    order = [entry.get("idref") for entry in package.iter(f"{OPF}itemref")]
    assert order == ["contents", "intro", NAME]
    assert "mathml" in listed[f"{NAME}.xhtml"].get("properties")


def test_every_link_and_image_of_the_epub_is_in_it(archive):
    documents = {
        name: ElementTree.fromstring(archive.read(name))
        for name in archive.namelist()
        if name.endswith(".xhtml")
    }
    places = {
        name: [node.get("id") for node in tree.iter() if node.get("id")] for name, tree in documents.items()
    }
    checked = 0
    for name, tree in documents.items():
        assert len(places[name]) == len(set(places[name])), f"{name} has an id twice"
        for link in tree.iter(f"{HTML}a"):
            address = link.get("href", "")
            if "://" in address or not address:
                continue
            file, _, place = address.partition("#")
            if file.removesuffix(".xhtml") not in ("intro", NAME, "contents"):
                continue  # a page that was not asked for here
            assert not place or place in places[f"book/{file}"], address
            checked += 1
        for image in tree.iter(f"{HTML}img"):
            assert image.get("alt")
            assert f"book/{image.get('src')}" in archive.namelist()
    assert checked > 10


def test_the_epubs_figures_and_formulas_are_drawn(archive):
    tree = ElementTree.fromstring(archive.read(f"book/{NAME}.xhtml"))
    images = [image.get("src") for image in tree.iter(f"{HTML}img")]
    drawn = parsed(CHAPTER).figures
    assert len(images) >= drawn > 2
    for name in images:
        assert len(list(ElementTree.fromstring(archive.read(f"book/{name}")).iter())) > 20
    assert len(list(tree.iter(MATH))) > 10
    text = "".join(tree.itertext())
    assert "\\(" not in text
    assert not [
        node.tag for node in tree.iter() if node.tag in (f"{HTML}script", f"{HTML}button", f"{HTML}input")
    ]


def test_the_first_page_links_what_there_is(tmp_path):
    page = '<p>Read.</p><div class="pdt-downloads"></div>'
    (tmp_path / "intro.html").write_text(page, encoding="utf-8")
    downloads.link(tmp_path)
    assert (tmp_path / "intro.html").read_text(encoding="utf-8") == page
    (tmp_path / downloads.FILES["epub"]).write_bytes(b"x" * 2_000_000)
    for _ in range(2):  # again, after a build that has not written the page anew
        downloads.link(tmp_path)
        html = (tmp_path / "intro.html").read_text(encoding="utf-8")
        assert html.count("<a ") == 1
        assert f'href="{downloads.FILES["epub"]}"' in html
        assert "2.0 MB" in html
    assert "pdt-downloads" in (SITE / "intro.html").read_text(encoding="utf-8")
