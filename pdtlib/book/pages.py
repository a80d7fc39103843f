"""What each page of the site loads, and what it does not load.

Scripts and styles are the site's own files under ``vendor/``. A page gets those of the outputs that
it holds; whatever an extension or the theme would fetch from elsewhere is taken out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

SCRIPTS = {
    "figure": "explore/figure.js",
    "explorer": "explore/explorer.js",
    "exercise": "exercises/exercise.js",
    "prediction": "explore/prediction.js",
    "dashboard": "explore/dashboard.js",
}
STYLES = {
    "figure": "explore/explorer.css",
    "explorer": "explore/explorer.css",
    "exercise": "exercises/exercise.css",
    "prediction": "explore/prediction.css",
    "dashboard": "explore/explorer.css",
}
_ICON_SCRIPT = re.compile(r'<script[^>]*src="[^"]*/fontawesome\.js[^"]*"[^>]*></script>')
_OUTPUT = re.compile(r'data-pdt="(\w+)"')


def kinds(body: str) -> list[str]:
    """The kinds of output that a rendered page holds, sorted."""
    return sorted(set(_OUTPUT.findall(body)))


def finish_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """``html-page-context``: add what this page's outputs need, take out what is fetched from elsewhere."""
    if app.builder.format != "html":
        return
    for name in ("script_files", "css_files"):
        context[name] = [file for file in context.get(name, []) if _is_ours(file)]
    # A list may not hold the links back that docutils puts into a bibliography's entries.
    body = context.get("body", "").replace(
        '<div role="list" class="citation-list">', '<div class="citation-list">'
    )
    if "body" in context:
        context["body"] = body
    pathto = context["pathto"]
    if 'class="math' not in body:
        context["script_files"] = [file for file in context["script_files"] if not _is_mathjax(file)]
    found = kinds(body)
    tags = [_style(pathto("vendor/pdt/book/book.css", resource=True))]
    tags += [_style(pathto(f"vendor/pdt/{STYLES[kind]}", resource=True)) for kind in found if kind in STYLES]
    tags += [
        f'<script type="module" src="{pathto(f"vendor/pdt/{SCRIPTS[kind]}", resource=True)}"></script>'
        for kind in found
    ]
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def drop_thebe(app: Sphinx, config: Config) -> None:
    """``config-inited``: disconnect sphinx-thebe, which Jupyter Book always loads.

    It would write a kernel's configuration and a CDN's address into every page.
    """
    for listeners in app.events.listeners.values():
        listeners[:] = [
            entry for entry in listeners if not entry.handler.__module__.startswith("sphinx_thebe")
        ]


def _style(url: str) -> str:
    return f'<link rel="stylesheet" href="{url}">'


def _is_mathjax(file: Any) -> bool:
    attributes = getattr(file, "attributes", {})
    return "mathjax" in f"{getattr(file, 'filename', None) or file}{attributes.get('body', '')}".lower()


def _is_ours(file: Any) -> bool:
    name = file if isinstance(file, str) else str(file.filename or "")
    return "://" not in name and not name.endswith("sphinx-thebe.css")


def remove_stale(app: Sphinx, exception: Exception | None) -> None:
    """``build-finished``: pages of chapters that are no longer there must not stay on the site."""
    if exception is not None or app.builder.format != "html":
        return
    root = Path(app.outdir)
    current = {*app.env.found_docs, "index", "search", "genindex"}
    for path in root.rglob("*.html"):
        page = path.relative_to(root)
        if page.parts[0] not in ("_static", "vendor") and page.with_suffix("").as_posix() not in current:
            path.unlink()


def drop_icon_script(app: Sphinx, exception: Exception | None) -> None:
    """``build-finished``: take the theme's icon script out of the pages.

    Its icons come from the theme's font as well; the script weighs more than half a megabyte,
    compressed, and serves only icons that a site adds. It stands in the theme's template, out of reach of
    ``html-page-context``.
    """
    if exception is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        html = path.read_text(encoding="utf-8")
        trimmed = _ICON_SCRIPT.sub("", html)
        if trimmed != html:
            path.write_text(trimmed, encoding="utf-8")


def set_address(app: Sphinx, config: Config) -> None:
    """``config-inited``: launch and repository buttons exist when the repository has an address.

    The address stands once, in ``_config.yml`` (``repository: url``).
    """
    options = config.html_theme_options
    known = bool(options.get("repository_url"))
    for button in ("use_repository_button", "use_issues_button"):
        options[button] = known
    if not known:
        options["launch_buttons"] = {}
        options.pop("repository_url", None)
