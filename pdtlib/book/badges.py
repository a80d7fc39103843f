"""Which test checks a formula: the role ``tested``, and the page that lists them all.

``{tested}`tests/plan/test_states.py::test_zero_table_1``` beside a formula becomes a small badge that
leads to its line on the page "How this book is checked". A name of a test that does not exist is a
warning, and the book is built with warnings as errors.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import NoUri
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)
RESULTS = Path("_build/test-results.json")  # written by the tests themselves (tests/conftest.py)
ENV_KEY = "pdtlib_tested"


class tested(nodes.Inline, nodes.TextElement):
    """A badge; resolved into a link when all pages have been read."""


class tested_list(nodes.General, nodes.Element):
    """Where the list of all badges goes."""


class TestedRole(SphinxRole):
    """``{tested}`FILE::TEST```."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        test = self.text.strip()
        if problem := missing(Path(self.env.srcdir), test):
            logger.warning("tested: %s", problem, location=self.get_location())
        number = self.env.new_serialno("pdtlib-tested")
        return [tested("", test=test, ids=[f"tested-{number}"])], []


class TestedList(SphinxDirective):
    """Every badge of the book: what its test checks, the test, where it stands, its last result."""

    def run(self) -> list[nodes.Node]:
        return [tested_list("")]


def missing(root: Path, test: str) -> str | None:
    """Why ``FILE::TEST`` or ``FILE::CLASS::TEST`` is not a test of this project; ``None`` if it is one."""
    file, *names = test.split("::")
    path = root / file
    if not names or not file.startswith("tests/"):
        return f"{test!r} is not of the form tests/FILE.py::test_name"
    if not path.is_file():
        return f"{test!r}: there is no {file}"
    if _definition(path, tuple(names)) is None:
        return f"{test!r}: {file} has no {'::'.join(names)}"
    return None


@lru_cache(maxsize=256)
def _tree(path: Path, modified: int) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _definition(path: Path, names: tuple[str, ...]) -> ast.AST | None:
    node: Any = _tree(path, path.stat().st_mtime_ns)
    for name in names:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((n for n in node.body if isinstance(n, kinds) and n.name == name), None)
        if node is None:
            return None
    return node if names[-1].lower().startswith("test") else None


def says(root: Path, test: str) -> str:
    """The first sentence of a test's docstring, or its name in words."""
    file, *names = test.split("::")
    node = _definition(root / file, tuple(names))
    if node is None:
        return ""
    text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
    words = names[-1].removeprefix("test_").replace("_", " ")
    return " ".join((text or words).split("\n\n")[0].split())


def result(results: dict[str, str], test: str) -> str:
    """The last result of a test, all its parameters together: passed, failed, or not run here."""
    outcomes = {
        outcome
        for name, outcome in results.items()
        if name == test or name.startswith((test + "[", test + "::"))
    }
    if not outcomes:
        return "not run here"
    return (
        "failed" if outcomes & {"failed", "error"} else "passed" if "passed" in outcomes else "not run here"
    )


def _badges(env: BuildEnvironment) -> dict[str, list[dict[str, str]]]:
    if not hasattr(env, ENV_KEY):
        setattr(env, ENV_KEY, {})
    return getattr(env, ENV_KEY)


def collect(app: Sphinx, doctree: nodes.document) -> None:
    """``doctree-read``: note each badge of a page, with the section that it stands in."""
    found = []
    for node in doctree.findall(tested):
        section: nodes.Node | None = node
        while section is not None and not isinstance(section, nodes.section):
            section = section.parent
        title = section.next_node(nodes.title) if section is not None else None
        found.append(
            {"test": node["test"], "anchor": node["ids"][0], "section": title.astext() if title else ""}
        )
    _badges(app.env)[app.env.docname] = found


def purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _badges(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: Iterable[str], other: BuildEnvironment) -> None:
    for docname in docnames:
        if docname in _badges(other):
            _badges(env)[docname] = _badges(other)[docname]


def list_page(env: BuildEnvironment) -> str | None:
    """The page that holds the table, if there is one."""
    return next((doc for doc, meta in env.metadata.items() if "pdtlib-tested-list" in meta), None)


def note_list_page(app: Sphinx, doctree: nodes.document) -> None:
    """``doctree-read``: remember which page holds the table."""
    if next(doctree.findall(tested_list), None) is not None:
        app.env.metadata[app.env.docname]["pdtlib-tested-list"] = True


def rewrite_list_page(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """``env-updated``: the table depends on all pages and on the last results, so it's always written."""
    page = list_page(env)
    return [page] if page else []


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """``doctree-resolved``: badges become links, the list its entries."""
    page = list_page(app.env)
    for node in list(doctree.findall(tested)):
        node.replace_self(_badge(app, docname, page, node["test"], node["ids"]))
    for place in list(doctree.findall(tested_list)):
        place.replace_self(_list(app, docname))


def _badge(app: Sphinx, docname: str, page: str | None, test: str, ids: list[str]) -> nodes.Node:
    uri = f"#{anchor(test)}"
    if page:
        try:
            uri = app.builder.get_relative_uri(docname, page) + uri
        except NoUri:
            page = None
    title = f"Checked by {test}"
    if not page:
        return nodes.inline("", "tested", ids=ids, classes=["pdt-tested"])
    return nodes.reference(
        "", "tested", refuri=uri, internal=True, ids=ids, classes=["pdt-tested"], reftitle=title
    )


def anchor(test: str) -> str:
    """The id of a test's row."""
    return nodes.make_id(test)


def _list(app: Sphinx, docname: str) -> nodes.Node:
    root = Path(app.srcdir)
    path = root / RESULTS
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    places: dict[str, list[tuple[str, str, str]]] = {}
    for page in sorted(_badges(app.env)):
        for badge in _badges(app.env)[page]:
            places.setdefault(badge["test"], []).append((page, badge["anchor"], badge["section"]))
    entries = nodes.definition_list(classes=["pdt-tested-list"])
    for test, where in places.items():
        links = nodes.paragraph("", "Beside a formula in ")
        for page, ref, section in where:
            uri = ("" if page == docname else app.builder.get_relative_uri(docname, page)) + f"#{ref}"
            title = app.env.titles[page].astext()
            links += nodes.Text("; ") if len(links) > 1 else nodes.Text("")
            links += nodes.reference(
                "", f"{title}: {section}" if section else title, refuri=uri, internal=True
            )
        outcome = result(results, test)
        last = nodes.paragraph("", "Last result: ", nodes.strong(text=outcome))
        term = nodes.term(text=says(root, test), ids=[anchor(test)])
        body = nodes.definition("", nodes.paragraph("", "", nodes.literal(text=test)), links, last)
        entries += nodes.definition_list_item("", term, body)
    return entries


def setup(app: Sphinx) -> None:
    """Register the role, the directive and the handlers."""
    app.add_node(tested)
    app.add_node(tested_list)
    app.add_role("tested", TestedRole())
    app.add_directive("tested-list", TestedList)
    app.connect("doctree-read", collect)
    app.connect("doctree-read", note_list_page)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", rewrite_list_page)
    app.connect("doctree-resolved", resolve)
