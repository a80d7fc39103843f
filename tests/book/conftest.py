"""A small book built with the project's own settings, for tests of the extension."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from pdtlib.book.normalise import METADATA

ROOT = Path(__file__).parents[2]

CHAPTER = """# Chapter

A formula: $a^2 + b^2$ {tested}`tests/plan/test_numbers.py::test_sum`.

The value is {glue:text}`value`.
"""

TEST = '''def test_sum():
    """Two and two are four."""
    assert 2 + 2 == 4
'''


class Book:
    """A book in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
        # Beside the page: a folder pdtlib here would hide the real one from the kernel.
        self.write("icon.svg", (ROOT / self.config["html"]["favicon"]).read_text(encoding="utf-8"))
        self.config["html"]["favicon"] = "icon.svg"
        self.write(
            "_toc.yml", "format: jb-book\nroot: index\nchapters:\n  - file: chapter\n  - file: checked\n"
        )
        self.write("references.bib", "")
        self.write("index.md", "# Plain page\n\nNothing to load here.\n")
        self.write("checked.md", "# Checked\n\n```{tested-list}\n```\n")
        self.write("labs/value.txt", "4")
        self.write("tests/plan/test_numbers.py", TEST)
        self.notebook(
            "from pathlib import Path",
            "from pdtlib.book import number",
            "number('value', Path('labs/value.txt').read_text())",
            "print('printed', Path('labs/value.txt').read_text())",
        )

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def notebook(self, *lines: str, markdown: str = CHAPTER) -> None:
        cells = [new_markdown_cell(markdown), new_code_cell("\n".join(lines))]
        self.write("chapter.ipynb", nbformat.writes(new_notebook(cells=cells, metadata=METADATA)))

    def build(self) -> subprocess.CompletedProcess:
        self.write("_config.yml", yaml.safe_dump(self.config))
        command = [Path(sys.executable).with_name("jupyter-book"), "build", self.root, "-W", "--keep-going"]
        environment = {**os.environ, "NO_COLOR": "1"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
        )

    def page(self, name: str) -> str:
        return (self.root / "_build/html" / f"{name}.html").read_text(encoding="utf-8")


@pytest.fixture
def book(tmp_path):
    yield Book(tmp_path)
    shutil.rmtree(tmp_path, ignore_errors=True)
