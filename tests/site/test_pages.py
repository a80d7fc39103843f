"""Every page of the site: complete, readable, accessible, light, and alone with itself."""

from __future__ import annotations

import gzip
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from site_under_test import PAGES, SITE, pages, parsed, split

WEIGHT_LIMIT_BYTES = 2_000_000
SERIOUS = ("serious", "critical")
PACKED = (".woff2", ".png", ".jpg", ".zip", ".gz")
LOOKS = [{"theme": theme, "width": width} for theme in ("light", "dark") for width in (1280, 360)]


def look_id(look):
    return f"{look['theme']}-{look['width']}"


def needs_python(page):
    return bool(parsed(page).explorers or parsed(page).exercises)


def overflowing(page):
    """The widest elements that stick out of the viewport, as text; empty if none does."""
    return page.evaluate(
        """() => {
            const width = document.documentElement.clientWidth;
            if (document.documentElement.scrollWidth <= width) return [];
            const clipped = (node) => {
                for (let box = node.parentElement; box && box !== document.body; box = box.parentElement)
                    if (getComputedStyle(box).overflowX !== "visible") return true;
                return false;
            };
            return [...document.body.querySelectorAll("*")]
                .filter((node) => node.getBoundingClientRect().right > width + 1 && !clipped(node))
                .map((node) => `${node.tagName}.${node.className}: ${node.getBoundingClientRect().right}`)
                .slice(0, 5)
                .concat(`page is ${document.documentElement.scrollWidth} wide, window ${width}`);
        }"""
    )


def violations(page):
    """Serious and critical findings of axe, one line each."""
    found = Axe().run(page).response["violations"]
    return [
        f"{item['id']} ({item['impact']}): {node['target']} {node['html'][:200]} {node['failureSummary']}"
        for item in found
        if item["impact"] in SERIOUS
        for node in item["nodes"]
    ]


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("visit", LOOKS, indirect=True, ids=look_id)
def test_a_page_is_whole_and_readable(visit, path):
    """No blocked or failed request, no console error, no sideways scrolling, no barrier that axe sees."""
    page = visit.open(path)
    visit.settle()
    assert visit.blocked == []
    assert visit.failed == []
    assert visit.errors == []
    assert overflowing(page) == []
    assert violations(page) == []
    if not needs_python(path):
        assert visit.python_requests() == []


def packed_size(file):
    """What a file weighs on the wire of a server that compresses."""
    data = file.read_bytes()
    return len(data) if file.suffix in PACKED else len(gzip.compress(data, 6))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_weighs_little(visit, path):
    """At most 2 MB, compressed, before Pyodide; which is not asked for until the reader comes near."""
    visit.open(path)
    visit.settle()
    assert visit.python_requests() == []
    files = {
        SITE / urlsplit(url).path.lstrip("/") for url in visit.requested if url.startswith(visit.address)
    }
    weights = {file.name: packed_size(file) for file in files}
    total = sum(weights.values())
    heaviest = sorted(weights.items(), key=lambda item: -item[1])[:5]
    assert 10_000 < total <= WEIGHT_LIMIT_BYTES, heaviest


@pytest.mark.parametrize("path", PAGES)
def test_internal_links_lead_somewhere(path):
    for link in parsed(path).links:
        target = split(path, link)
        if target is None or link == "#":
            continue
        page, anchor = target
        assert (SITE / page).is_file(), f"{path}: {link}"
        if anchor and page.endswith(".html"):
            assert anchor in parsed(page).ids, f"{path}: {link}"


def test_the_site_has_explorers_exercises_and_figures():
    """The tests of the site are not about nothing."""
    html = [parsed(page) for page in pages()]
    assert {given["data-explorer"] for page in html for given in page.explorers} >= {"memory-stack", "zero"}
    assert any(page.exercises for page in html)
    assert any(page.predictions for page in html)
    assert any(page.figures for page in html)


@pytest.mark.parametrize("path", [page for page in PAGES if page in pages() and parsed(page).figures])
def test_figures_follow_the_theme(visit, path):
    """The switch in the header changes the colours inside a figure."""
    page = visit.open(path)
    visit.settle()
    colour = """() => getComputedStyle(document.querySelector("[data-figure] .main-svg text")).fill"""
    before = page.evaluate(colour)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(f"before => ({colour})() !== before", arg=before)
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.wait_for_function(f"before => ({colour})() === before", arg=before)


def test_search_finds_words_of_the_book(visit):
    page = visit.open("search.html?q=memory")
    page.wait_for_selector("ul.search li")
    assert visit.errors == []
    assert visit.blocked == []


def test_the_cheat_sheet_prints_on_one_sheet(visit):
    page = visit.open("chapters/cheat_sheet.html")
    visit.settle()
    assert page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1
