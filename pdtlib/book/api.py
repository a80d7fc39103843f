"""The API reference: every public module of a package on one page, by Sphinx's autodoc.

A page names packages in comments, ``<!-- api: pdtlib.plan -->``. While it is read, each of them becomes a
heading for every module below it and autodoc's directive.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MARK = re.compile(r"<!-- api: ([\w.]+) -->")
SECTION = """## {module}

```{{eval-rst}}
.. automodule:: {module}
   :members:
   :ignore-module-all:
   :member-order: bysource
```
"""
# Definitions of single explorers and exercises: what they do stands in the chapters, solutions included.
LEFT_OUT = re.compile(r"pdtlib\.(explore\.explorers|exercises\.ch\d\d_\w+|book\.claims\.ch\d\d\w*)")


def modules(package: str) -> Iterator[str]:
    """The package and its modules, depth first and by name; a name with an underscore in front is private."""
    yield package
    inside = pkgutil.iter_modules(getattr(import_module(package), "__path__", ()))
    for name in sorted(module.name for module in inside):
        path = f"{package}.{name}"
        if not name.startswith("_") and not LEFT_OUT.fullmatch(path):
            yield from modules(path)


def expand(app: Sphinx, docname: str, source: list[str]) -> None:
    """``source-read``: put the sections of a package in the place of its comment."""
    source[0] = MARK.sub(
        lambda found: "\n".join(SECTION.format(module=module) for module in modules(found[1])), source[0]
    )


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.config.autodoc_inherit_docstrings = False  # torch's own text is not ours to print
    app.connect("source-read", expand)
