"""The directive ``checked``: tables of :mod:`pdtlib.book.evidence`, as every kind of output can show them.

``{checked} published`` is computed when its page is read. ``{checked} peers`` and ``{checked} reports`` are
read from files that change without the page, so a page that has them is written anew in each build.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from pdtlib.book import evidence
from pdtlib.book.tables import Table

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

META = "pdtlib-reports"


class report_place(nodes.General, nodes.Element):
    """Where the tables of peers or of reports go."""


class Checked(SphinxDirective):
    """A table of what was checked; its argument says which."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        root, kind = Path(self.env.srcdir), self.arguments[0]
        if kind in REPORTS:
            return [report_place("", kind=kind)]
        if kind != "published":
            raise self.error(f"checked: {kind!r}; valid: published, {', '.join(REPORTS)}")
        self.env.note_dependency(str(root / "benchmarks/facts.json"))
        table, missing = evidence.published(root)
        rest = f"Not predicted, since the publication does not say enough: {'; '.join(missing)}."
        return [table_node(table), *([nodes.paragraph(text=rest)] if missing else [])]


def _peers(root: Path) -> list[nodes.Node]:
    path = root / evidence.PEERS
    about = nodes.paragraph(text=evidence.peers_about(path))
    return [about, *map(table_node, evidence.peers(path))]


def _reports(root: Path) -> list[nodes.Node]:
    return [table_node(evidence.reports(root))]


REPORTS = {"peers": _peers, "reports": _reports}


def table_node(table: Table) -> nodes.table:
    """A table of texts as docutils has it; the first column names the row."""
    columns = len(table.header)
    group = nodes.tgroup("", cols=columns)
    group += [nodes.colspec(colwidth=1, **({} if i else {"stub": 1})) for i in range(columns)]
    group += nodes.thead("", _row(table.header))
    group += nodes.tbody("", *(_row(row) for row in table.rows))
    ids = [nodes.make_id(f"checked {table.caption}")]
    return nodes.table("", nodes.title(text=table.caption), group, ids=ids)


def _row(cells: Any) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=str(cell))) for cell in cells))


def note(app: Sphinx, doctree: nodes.document) -> None:
    """``doctree-read``: remember the pages that show reports."""
    if next(doctree.findall(report_place), None) is not None:
        app.env.metadata[app.env.docname][META] = True


def rewrite(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """``env-updated``: those pages are written in each build."""
    return [page for page, meta in env.metadata.items() if META in meta]


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """``doctree-resolved``: put the tables in their places."""
    for place in list(doctree.findall(report_place)):
        place.replace_self(REPORTS[place["kind"]](Path(app.srcdir)))


def setup(app: Sphinx) -> None:
    """Register the directive and the handlers."""
    app.add_node(report_place)
    app.add_directive("checked", Checked)
    app.connect("doctree-read", note)
    app.connect("env-updated", rewrite)
    app.connect("doctree-resolved", resolve)
