"""The Sphinx extension, on a small book."""

import json
from html.parser import HTMLParser

import pytest

from pdtlib.book import badges, pages, renderers, vendor

# Links of these relations name a page; the browser fetches none of them.
NAMED = {"search", "index", "prev", "next", "canonical", "author", "copyright"}
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Loads(HTMLParser):
    """The addresses that a page makes the browser fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        value = dict(attrs).get(LOADED.get(tag, ""))
        if value and dict(attrs).get("rel") not in NAMED:
            self.found.append(value)


def loads(html):
    parser = Loads()
    parser.feed(html)
    return parser.found


def test_a_change_of_the_sources_is_executed_again_and_going_back_is_not(book):
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The value is 4." in book.page("chapter").replace('<span class="pasted-text">', "").replace(
        "</span>", ""
    )
    assert "printed 4" in book.page("chapter")

    book.write("labs/value.txt", "5")
    assert book.build().returncode == 0
    assert "printed 5" in book.page("chapter")

    book.write("labs/value.txt", "4")
    again = book.build()
    assert "printed 4" in book.page("chapter")
    assert "Using cached" in again.stdout + again.stderr


def test_pages_load_only_files_of_the_site_and_only_what_they_need(book):
    figure = {"data": [{"type": "bar", "x": [1], "y": [2]}], "layout": {"height": 200}}
    book.notebook(
        "from pdtlib.book import figure, number",
        "number('value', 1)",
        f"figure({figure!r}, alt='One bar </script> & \"two\"')",
    )
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    html = book.root / "_build/html"
    for page in html.rglob("*.html"):
        if "_static" in page.parts:
            continue
        for address in loads(page.read_text(encoding="utf-8")):
            assert "://" not in address, f"{page.name} loads {address}"
            assert not address.startswith("//"), f"{page.name} loads {address}"
            file = (page.parent / address.split("?")[0].split("#")[0]).resolve()
            assert file.is_file(), f"{page.name} loads {address}, which is not there"
        assert "fontawesome.js" not in page.read_text(encoding="utf-8")
        assert "thebe" not in page.read_text(encoding="utf-8").lower()
    assert "vendor/pdt/explore/figure.js" in book.page("chapter")
    assert "vendor/mathjax/tex-mml-chtml.js" in book.page("chapter")
    assert "vendor/pdt/explore" not in book.page("index")
    assert "vendor/mathjax" not in book.page("index")
    # Jupyter Book loads every script below _static on every page.
    assert not [path for path in html.glob("_static/**/*.js") if path.name in VENDORED]


VENDORED = {path.rsplit("/", 1)[1] for path, _ in vendor.NPM_FILES} | {
    "explorer.js",
    "exercise.js",
    "figure.js",
}


def test_a_badge_leads_to_its_test_and_back(book):
    book.write("_build/test-results.json", json.dumps({"tests/plan/test_numbers.py::test_sum": "passed"}))
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    row = badges.anchor("tests/plan/test_numbers.py::test_sum")
    assert f'href="checked.html#{row}"' in book.page("chapter")
    table = book.page("checked")
    assert f'id="{row}"' in table
    assert "Two and two are four." in table
    assert "passed" in table
    assert 'href="chapter.html#tested-0"' in table
    assert 'id="tested-0"' in book.page("chapter")

    book.write("_build/test-results.json", json.dumps({"tests/plan/test_numbers.py::test_sum": "failed"}))
    assert book.build().returncode == 0
    assert "failed" in book.page("checked")


def test_a_badge_of_a_test_that_does_not_exist_fails_the_build(book):
    book.write("tests/plan/test_numbers.py", TEST_OF_ANOTHER_NAME)
    done = book.build()
    assert done.returncode != 0
    assert "tests/plan/test_numbers.py has no test_sum" in done.stdout + done.stderr


TEST_OF_ANOTHER_NAME = "def test_product():\n    assert 2 * 2 == 4\n"


def test_a_chapter_that_is_gone_leaves_the_site(book):
    assert book.build().returncode == 0
    (book.root / "checked.md").unlink()
    book.write("_toc.yml", "format: jb-book\nroot: index\nchapters:\n  - file: chapter\n")
    assert book.build().returncode == 0
    assert not (book.root / "_build/html/checked.html").exists()
    assert "pdt-tested" in book.page("chapter")


def test_a_failing_cell_fails_every_build_and_is_shown_at_the_end(book):
    book.notebook("raise RuntimeError('planted')", markdown="# Chapter\n")
    for _ in range(2):
        done = book.build()
        assert done.returncode != 0
        assert "planted" in done.stderr.rstrip().splitlines()[-1]
        assert "Executing notebook failed: CellExecutionError" in done.stderr[-3000:]
    book.notebook("print('mended')", markdown="# Chapter\n")
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of this build" not in done.stderr


def test_the_address_makes_the_buttons_appear(book):
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("mybinder.org", "colab.research.google.com", "github.com/o/r"):
        assert host not in book.page("chapter")
    book.config["repository"]["url"] = "https://github.com/o/r"
    done = book.build()
    assert done.returncode == 0, done.stdout + done.stderr
    for part in (
        "mybinder.org/v2/gh/o/r/main",
        "colab.research.google.com/github/o/r",
        'href="https://github.com/o/r"',
    ):
        assert part in book.page("chapter")


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("tests/a.py::test_b", None),
        ("tests/a.py::TestC::test_d", None),
        ("tests/a.py", "not of the form"),
        ("a.py::test_b", "not of the form"),
        ("tests/none.py::test_b", "there is no tests/none.py"),
        ("tests/a.py::test_x", "has no test_x"),
        ("tests/a.py::helper", "has no helper"),
        ("tests/a.py::TestC", None),
    ],
)
def test_names_of_tests_are_looked_up(tmp_path, test, reason):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/a.py").write_text(
        "def test_b(): pass\ndef helper(): pass\nclass TestC:\n    def test_d(self): pass\n", encoding="utf-8"
    )
    problem = badges.missing(tmp_path, test)
    assert (problem is None) if reason is None else (problem is not None and reason in problem)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({}, "not run here"),
        ({"t::a": "passed"}, "passed"),
        ({"t::a[1]": "passed", "t::a[2]": "failed"}, "failed"),
        ({"t::a[1]": "skipped"}, "not run here"),
        ({"t::ab": "passed"}, "not run here"),
    ],
)
def test_the_result_of_a_test_is_that_of_all_its_parameters(results, expected):
    assert badges.result(results, "t::a") == expected


def test_a_figure_needs_words():
    with pytest.raises(ValueError, match="alt"):
        renderers.figure_html({"data": [], "layout": {}}, None)


def test_json_in_a_script_can_not_end_it():
    text = renderers.script_json({"a": "</script><!--\u2028"})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><!--\u2028"}


def test_kinds_of_output_are_read_from_the_page():
    assert pages.kinds('<div data-pdt="figure"></div><div data-pdt="explorer"><i data-pdt="figure">') == [
        "explorer",
        "figure",
    ]


def test_every_kind_has_its_script():
    assert {kind for kind, _ in renderers.KINDS.values()} == set(pages.SCRIPTS)
