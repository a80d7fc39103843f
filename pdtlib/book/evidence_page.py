"""The directive ``checked``: tables of :mod:`pdtlib.book.evidence`, as every kind of output can show them.

``{checked} published``, ``{checked} peers`` and ``{checked} reports``. The page that has one is written anew
in each build, since reports change without it.
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


class Checked(SphinxDirective):
    """A table of what was checked; its argument says which."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        root, kind = Path(self.env.srcdir), self.arguments[0]
        if kind == "published":
            self.env.note_dependency(str(root / "benchmarks/facts.json"))
            table, missing = evidence.published(root)
            rest = f"Not predicted, since the publication does not say enough: {'; '.join(missing)}."
            return [table_node(table), *([nodes.paragraph(text=rest)] if missing else [])]
        if kind == "peers":
            self.env.note_dependency(str(root / evidence.PEERS))
            tables = evidence.peers(root / evidence.PEERS)
            return [
                nodes.paragraph(text=evidence.peers_about(root / evidence.PEERS)),
                *(table_node(table) for table in tables),
            ]
        if kind == "reports":
            for name in evidence.REPORTS:
                self.env.note_dependency(str(root / evidence.RESULTS / name))
            return [table_node(evidence.reports(root))]
        raise self.error(f"checked: {kind!r}; valid: published, peers, reports")


def table_node(table: Table) -> nodes.table:
    """A table of texts as docutils has it; the first column names the row."""
    columns = len(table.header)
    group = nodes.tgroup("", cols=columns)
    group += [
        nodes.colspec(colwidth=1, stub=1) if i == 0 else nodes.colspec(colwidth=1) for i in range(columns)
    ]
    group += nodes.thead("", _row(table.header))
    group += nodes.tbody("", *(_row(row) for row in table.rows))
    return nodes.table("", nodes.title(text=table.caption), group)


def _row(cells: Any) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph(text=str(cell))) for cell in cells))


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("checked", Checked)
