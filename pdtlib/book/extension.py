"""The Sphinx extension: what it registers, and when each part runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdtlib import __version__
from pdtlib.book import api, badges, evidence_page, execution, pages, problems, renderers, vendor
from pdtlib.book.paper import downloads

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Register roles, directives and event handlers."""
    problems.setup(app)
    app.add_config_value("pdtlib_execution_key", "", "env", str)
    app.connect("config-inited", execution.use_keyed_cache)
    app.connect("config-inited", pages.set_address)
    app.connect("config-inited", pages.drop_thebe)
    # After the extensions whose files it takes out again.
    app.connect("html-page-context", pages.finish_page, priority=900)
    app.connect("env-purge-doc", renderers.purge)
    app.connect("env-merge-info", renderers.merge)
    app.connect("build-finished", pages.remove_stale)
    app.connect("build-finished", pages.drop_icon_script)
    app.connect("build-finished", vendor.copy_front_end)
    app.connect("build-finished", downloads.relink)
    badges.setup(app)
    evidence_page.setup(app)
    api.setup(app)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
