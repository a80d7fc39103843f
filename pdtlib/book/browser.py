"""The Chromium that the site's tests use: found, or installed.

``python -m pdtlib.book.browser`` prints its path; with ``--install`` it first installs one when there
is none. Looked for: ``PDTLIB_BROWSER``, then the usual names on the path, then Playwright's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> Path:
    """The browser's program. Raises ``FileNotFoundError`` with what was looked for."""
    named = os.environ.get("PDTLIB_BROWSER")
    if named:
        if shutil.which(named):
            return Path(shutil.which(named) or named)
        raise FileNotFoundError(f"PDTLIB_BROWSER={named!r}; valid: a program that can be run")
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    caches = (
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH"),
        "~/.cache/ms-playwright",
        "~/Library/Caches/ms-playwright",
    )
    for cache in filter(None, caches):
        for pattern in ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*"):
            if own := sorted(Path(cache).expanduser().glob(pattern)):
                return own[-1]
    raise FileNotFoundError(
        f"no browser: none of {', '.join(NAMES)} on the path, none of Playwright's own; "
        "install Chromium, or name a browser in PDTLIB_BROWSER"
    )


def install() -> None:
    """Install Chromium: by apt-get where this process is root, else by Playwright's own download.

    Raises ``RuntimeError`` with the end of each installer's output when neither brings one.
    """
    commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if shutil.which("apt-get") and os.geteuid() == 0:
        commands.insert(
            0, ["sh", "-c", "apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium"]
        )
    said = []
    for command in commands:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
        )
        try:
            find()
            return
        except FileNotFoundError:
            said.append(f"$ {' '.join(command)}\n{(done.stdout + done.stderr)[-800:]}")
    raise RuntimeError("no browser could be installed:\n" + "\n".join(said))


def main(arguments: list[str]) -> int:
    """Print the browser's path; 1 with the reason when there is none."""
    try:
        if "--install" in arguments:
            try:
                find()
            except FileNotFoundError:
                install()
        print(find())
    except (FileNotFoundError, RuntimeError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
