"""The project's address, from ``_config.yml`` into the files that name it: ``python -m pdtlib.book.address``.

It stands once (``repository: url``). While it's empty, README.md has no badges and CITATION.cff no
URL. ``--check`` changes nothing and exits 1 when a file does not fit.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- address -->", "<!-- /address -->"


def address(root: Path = ROOT) -> str:
    """The repository's URL, without a slash at the end; empty while there is none."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    return str(config["repository"].get("url") or "").rstrip("/")


def readme(text: str, url: str) -> str:
    """README.md with the badges and launch links of ``url`` between its two marks."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md; valid: one {BEGIN} and one {END}")
    lines = [BEGIN]
    if url:
        path = "/".join(url.split("/")[-2:])
        lines += [
            f"[![tests]({url}/actions/workflows/tests.yml/badge.svg)]({url}/actions/workflows/tests.yml)",
            f"[Open in Binder](https://mybinder.org/v2/gh/{path}/main?labpath=chapters) ·",
            f"[Open in Colab](https://colab.research.google.com/github/{path})",
        ]
    lines.append(END)
    before, rest = text.split(BEGIN)
    return before + "\n".join(lines) + rest.split(END)[1]


def citation(text: str, url: str) -> str:
    """CITATION.cff with ``repository-code`` when there is a URL, and without it when there is none."""
    text = re.sub(r"^repository-code:.*\n", "", text, flags=re.MULTILINE)
    return text + f'repository-code: "{url}"\n' if url else text


FILES = {"README.md": readme, "CITATION.cff": citation}


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write the files, or check them."""
    url, wrong = address(root), 0
    for name, write in FILES.items():
        path = root / name
        before = path.read_text(encoding="utf-8")
        after = write(before, url)
        if after == before:
            continue
        if "--check" in arguments:
            print(f"{name} does not have the address of _config.yml ({url!r}); run `make format`")
            wrong = 1
        else:
            path.write_text(after, encoding="utf-8")
            print(f"{name}: written")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
