"""A real browser on the built site, with every request to another host blocked and counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright
from site_under_test import MISSING, SITE, serve

from pdtlib.book import browser as browsers

TIMEOUT_MS = 150_000  # of one step; far beyond what a loaded machine needs


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The site's address on this machine."""
    if not (SITE / "index.html").exists():
        pytest.fail(MISSING)
    server = serve()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium without a window. Without one the tests fail, with what was looked for."""
    try:
        program = browsers.find()
    except FileNotFoundError as reason:
        pytest.fail(str(reason))
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=str(program), headless=True, args=list(browsers.FLAGS)
        )
        yield launched
        launched.close()


@dataclass
class Visit:
    """One page in a context of its own, and everything that went wrong on it."""

    page: Page
    address: str
    blocked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    refused: tuple[str, ...] = ()  # paths of the site that are answered with an error

    def __post_init__(self) -> None:
        self.page.context.route("**/*", self._route)
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "response", lambda r: self.failed.append(f"{r.status} {r.url}") if r.status >= 400 else None
        )

    def _route(self, route: Route) -> None:
        url = route.request.url
        self.requested.append(url)
        if not url.startswith((self.address, "data:", "blob:")):
            self.blocked.append(url)
            route.abort()
        elif any(path in url for path in self.refused):
            route.abort()
        else:
            route.continue_()

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path, wait_until="load")
        return self.page

    def settle(self) -> None:
        """Bring every figure into view, one after the other, and wait until it is drawn."""
        self.page.evaluate("() => window.MathJax?.startup?.promise.then(() => true)")
        figures = self.page.locator("[data-figure]:visible")
        for index in range(figures.count()):
            figures.nth(index).scroll_into_view_if_needed()
            figures.nth(index).locator(".main-svg").first.wait_for()
        self.page.evaluate("scrollTo(0, 0)")
        self.page.wait_for_load_state("networkidle")

    def python_requests(self) -> list[str]:
        """Requests of this page for Pyodide or for pdtlib's sources."""
        paths = [urlsplit(url).path for url in self.requested]
        return [path for path in paths if path.startswith("/vendor/pyodide/") or path.endswith("pdtlib.zip")]


@pytest.fixture
def visit(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A fresh page. Indirect parameters: ``theme``, ``width``, ``refused``, ``javascript``."""
    wanted = getattr(request, "param", {})
    theme = wanted.get("theme", "light")
    context: BrowserContext = browser.new_context(
        viewport={"width": wanted.get("width", 1280), "height": 900},
        color_scheme=theme,
        java_script_enabled=wanted.get("javascript", True),
        service_workers="block",
        accept_downloads=True,
    )
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(
        f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}');"
    )
    yield Visit(context.new_page(), address, refused=tuple(wanted.get("refused", ())))
    context.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Measured times: reported, never a reason to fail."""
    measured: dict[str, list[float]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, values in report.user_properties:
            if name.startswith("ms: "):
                measured.setdefault(name.removeprefix("ms: "), []).extend(values)
    for name, values in sorted(measured.items()):
        values.sort()
        median, worst = values[len(values) // 2], values[-1]
        terminalreporter.write_line(f"{name}: median {median:.1f} ms, worst {worst:.1f} ms, of {len(values)}")
