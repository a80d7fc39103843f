"""Tables of computed values: HTML on a page, aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_html


def escape(text: str) -> str:
    """Text for HTML in which a number and its percent sign stay on one line."""
    return escape_html(text, quote=True).replace(" %", "&nbsp;%")


@dataclass(frozen=True)
class Table:
    """Rows of text under a header. The first column names the row; the others are right-aligned.

    ``caption`` says what the table shows. Raises ``ValueError`` for a row of another length than the header.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    text_columns: Sequence[int] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"row={list(row)}; valid: {len(self.header)} values, as the header has")

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th scope="col" style="{self._align(i)}">{escape(name)}</th>'
            for i, name in enumerate(self.header)
        )
        body = "".join(
            "<tr>"
            + f'<th scope="row" style="{self._align(0)};font-weight:inherit">{escape(str(row[0]))}</th>'
            + "".join(
                f'<td style="{self._align(i)}">{escape(str(value))}</td>'
                for i, value in enumerate(row[1:], start=1)
            )
            + "</tr>"
            for row in self.rows
        )
        caption = escape(self.caption)
        return (
            f'<div class="pst-scrollable-table-container" role="region" tabindex="0" aria-label="{caption}" '
            f'style="overflow-x:auto"><table class="table"><caption>{caption}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _align(self, column: int) -> str:
        if column == 0 or column in self.text_columns:
            return "text-align:left;min-width:9rem"
        return "text-align:right;white-space:nowrap"

    def __repr__(self) -> str:
        lines = [[str(value) for value in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(
            "  ".join(
                value.ljust(width) if i == 0 or i in self.text_columns else value.rjust(width)
                for i, (value, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
        return f"{self.caption}\n{text}"
