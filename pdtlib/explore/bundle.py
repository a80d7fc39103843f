"""The part of pdtlib that runs in the browser, as a zip."""

from __future__ import annotations

import zipfile
from pathlib import Path

PACKAGES = ("plan", "figures", "explore", "exercises")
SUFFIXES = (".py", ".json", ".toml", ".md")


def files() -> list[Path]:
    """The sources and data that the zip holds, sorted, as absolute paths."""
    root = Path(__file__).parents[1]
    found = [root / "__init__.py"]
    for package in PACKAGES:
        inside = (path for path in (root / package).rglob("*") if path.suffix in SUFFIXES)
        found += [path for path in inside if "front" not in path.parts]
    return sorted(found)


def write_zip(path: Path) -> Path:
    """Write the zip (the same bytes for the same sources) to ``path`` and return it."""
    base = Path(__file__).parents[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files():
            member = zipfile.ZipInfo(file.relative_to(base).as_posix(), date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, file.read_bytes())
    return path
