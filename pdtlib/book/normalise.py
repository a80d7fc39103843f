"""The notebooks' normal form: ``python -m pdtlib.book.normalise [--check | --execute] [FILE...]``.

A notebook in normal form differs from another version of it only where its text, its code or its
results differ: ids follow from the cells' sources, metadata holds nothing that a machine or an editor
has put there, and execution counts run 1, 2, 3.

Outputs are kept for cells that print the same text everywhere, since nbval compares those; a cell
without a count is executed but never compared, so such a cell must have one. Cells tagged with one of
``UNCOMPARED`` hold figures, widgets, source or measured times: their outputs are made at build time.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
FOLDERS = ("chapters", "labs")
UNCOMPARED = frozenset({"figure", "widget", "excerpt", "lab"})
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = ("tags", "mystnb")
TEXT = ("text/plain", "text/markdown", "text/html", "text/latex")
GLUE = "application/papermill.record/"


def notebooks(root: Path = ROOT) -> list[Path]:
    """The notebooks of the book, sorted."""
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*.ipynb")]
    return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)


def is_compared(cell: NotebookNode) -> bool:
    """Whether nbval compares the outputs of this cell."""
    return cell.cell_type == "code" and bool(cell.source.strip()) and not UNCOMPARED & set(_tags(cell))


def normal_form(notebook: NotebookNode) -> NotebookNode:
    """The same notebook in normal form. Outputs of compared cells are kept as they are."""
    cells: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    count = 0
    for cell in notebook.cells:
        source = "\n".join(line.rstrip() for line in cell.source.split("\n")).strip("\n")
        metadata = {name: cell.metadata[name] for name in CELL_METADATA if cell.metadata.get(name)}
        if "tags" in metadata:
            metadata["tags"] = sorted(set(metadata["tags"]))
        digest = hashlib.sha256(f"{cell.cell_type}\n{source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        identity = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        normal = {"cell_type": cell.cell_type, "id": identity, "metadata": metadata, "source": source}
        if cell.cell_type == "code":
            count += 1
            kept = is_compared(cell) and cell.execution_count is not None
            normal["execution_count"] = count if kept else None
            normal["outputs"] = [_output(output, count) for output in cell.outputs] if kept else []
        cells.append(normal)
    return nbformat.from_dict({"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5})


def _output(output: NotebookNode, count: int) -> dict[str, Any]:
    normal = {**output}
    if "metadata" in normal:
        normal["metadata"] = (
            {"scrapbook": output.metadata.scrapbook} if "scrapbook" in output.metadata else {}
        )
    if "execution_count" in normal:
        normal["execution_count"] = count
    return normal


def problems(notebook: NotebookNode) -> list[str]:
    """What a person has to put right: cells that nbval would not compare, or could not."""
    found = []
    for index, cell in enumerate(notebook.cells):
        if not is_compared(cell):
            continue
        where = f"cell {index} ({cell.source.strip().splitlines()[0][:60]!r})"
        if cell.execution_count is None:
            found.append(f"{where}: never executed; run `make notebooks`, or tag it {_choices()}")
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in _tags(cell):
                found.append(f"{where}: ends in {output.ename}: {output.evalue}")
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"{where}: writes to stderr: {output.text[:80]!r}")
            for mime in output.get("data", {}):
                if mime not in TEXT and not mime.startswith(GLUE):
                    found.append(f"{where}: has an output of type {mime}; tag it {_choices()}")
    return found


def _tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def _choices() -> str:
    return " or ".join(sorted(UNCOMPARED))


def read(path: Path) -> NotebookNode:
    """A notebook of format 4; cells without an id are allowed, since ids are computed anyway."""
    return nbformat.from_dict(nbformat.reader.reads(path.read_text(encoding="utf-8")))


def text(notebook: NotebookNode) -> str:
    """The file's text."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells in ``folder`` with this Python and return the notebook with their outputs."""
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    return client.execute()


def main(arguments: list[str] | None = None) -> int:
    """Rewrite notebooks in normal form, or with ``--check`` say which are not; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m pdtlib.book.normalise", description="Notebooks' normal form"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file would change")
    mode.add_argument("--execute", action="store_true", help="run the notebooks and store their outputs")
    parser.add_argument("files", nargs="*", type=Path, help="notebooks (default: all of the book)")
    options = parser.parse_args(arguments)
    wrong = 0
    for path in options.files or notebooks():
        name = path.relative_to(ROOT) if path.is_absolute() and path.is_relative_to(ROOT) else path
        before = path.read_text(encoding="utf-8")
        notebook = read(path)
        if options.execute:
            notebook = execute(normal_form(notebook), path.parent)
        notebook = normal_form(notebook)
        for problem in problems(notebook):
            print(f"{name}: {problem}")
            wrong = 1
        if text(notebook) != before:
            if options.check:
                print(f"{name}: not in normal form; run `make format`")
                wrong = 1
            else:
                path.write_text(text(notebook), encoding="utf-8")
                print(f"{name}: written")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
