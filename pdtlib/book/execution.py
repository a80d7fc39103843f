"""The key of the execution cache.

jupyter-cache looks at a notebook's own source alone, so after an edit of ``pdtlib`` it would print
the old numbers. Here the cache lies in a folder named by everything else that a notebook's outputs
depend on, and the key is a configuration value of the kind that makes Sphinx read every page again
when it changes. Going back to an earlier state of the sources finds that state's cache again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

FOLDERS = ("pdtlib", "labs")
SKIPPED = {"__pycache__", "node_modules", "front", "runs", ".ipynb_checkpoints"}
KEPT = 5  # caches of earlier states


def sources(root: Path) -> list[Path]:
    """The files of ``pdtlib`` and ``labs`` that a cell's output can depend on, sorted.

    The front end's scripts are left out: they run on the reader's page, not in a cell.
    """
    found = []
    for folder in FOLDERS:
        for directory, names, files in os.walk(root / folder):
            names[:] = sorted(name for name in names if name not in SKIPPED)
            found += [Path(directory, file) for file in files if not file.endswith((".pyc", ".ipynb"))]
    return sorted(found)


def versions() -> list[str]:
    """Python's version and that of every installed distribution."""
    installed = {f"{dist.name}=={dist.version}" for dist in metadata.distributions() if dist.name}
    return [sys.version, *sorted(installed)]


def key(root: Path) -> str:
    """A sha256 over sources and versions, as 16 hexadecimal digits."""
    digest = hashlib.sha256("\n".join(versions()).encode())
    for path in sources(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def use_keyed_cache(app: Sphinx, config: Config) -> None:
    """``config-inited``: name the cache by the key, and tell the kernels that a book is being built."""
    root = Path(app.srcdir)
    config.pdtlib_execution_key = key(root)
    caches = root / ".jupyter_cache"
    config.nb_execution_cache_path = str(caches / config.pdtlib_execution_key)
    os.environ["PDTLIB_BOOK"] = "1"
    _forget_old(caches, keep=config.pdtlib_execution_key)


def _forget_old(caches: Path, *, keep: str) -> None:
    """Remove all but the newest few caches; each holds the outputs of one state of the sources."""
    import shutil

    if caches.is_dir():
        others = [path for path in caches.iterdir() if path.is_dir() and path.name != keep]
        for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
            shutil.rmtree(path, ignore_errors=True)
