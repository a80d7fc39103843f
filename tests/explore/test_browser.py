"""The front end in a browser, without the book around it: the worker survives, the newest answer wins."""

import http.server
import shutil
import threading
import zipfile
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

import pdtlib
from pdtlib.book import browser as browsers
from pdtlib.book.vendor import pyodide_dir
from pdtlib.explore import bundle, catalog, page

FRONT = Path(pdtlib.__file__).parent / "explore" / "front"
BOOT_MS = 200_000  # on a loaded machine
NEVER_ENDS = "def loop():\n    while True:\n        pass\n\n\ndef double(n):\n    return 2 * n\n"
HTML = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8"><title>An explorer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="vendor/pdt/explore/explorer.css">
{fragment}
<script type="module" src="vendor/pdt/explore/explorer.js"></script>
<script type="module">
import {{ python }} from "./vendor/pdt/explore/python.js";
window.python = python;
</script>
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a site of one page, below a sub-path, with a function in pdtlib that never ends."""
    root = tmp_path_factory.mktemp("site")
    vendor = root / "sub/vendor"
    archive = bundle.write_zip(vendor / "pdt/pdtlib.zip")
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr("pdtlib/_never_ends.py", NEVER_ENDS)
    shutil.copytree(FRONT, vendor / "pdt/explore")
    (vendor / "pyodide").symlink_to(pyodide_dir())
    tables = vendor / "pdt/tables"
    tables.mkdir()
    for name, content in page.files("zero").items():
        (tables / name).write_bytes(content)
    (root / "sub/index.html").write_text(HTML.format(fragment=page.html("zero")), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def opened(site):
    """The page in Chromium. Plotly is left out: words and numbers must do without it."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=str(browsers.find()), headless=True, args=list(browsers.FLAGS)
        )
        tab = launched.new_page()
        tab.set_default_timeout(BOOT_MS)
        tab.goto(f"http://127.0.0.1:{server.server_address[1]}/sub/index.html")
        tab.wait_for_function("window.python !== undefined")
        yield tab
        launched.close()
    server.shutdown()


def run(tab, body):
    return tab.evaluate(f"async () => {{ const told = (e) => [e.type, e.field]; {body} }}")


def test_python_is_not_loaded_before_it_is_asked_for(opened):
    assert opened.evaluate("python.status") == "idle"


def test_an_error_brings_its_type_and_the_control(opened):
    arguments = '{id: "zero", state: {ranks: "7"}}'
    assert run(
        opened, f'return await python.call("pdtlib.explore.bridge", "view", {arguments}).catch(told);'
    ) == [
        "ControlError",
        "ranks",
    ]


def test_a_call_that_never_ends_is_stopped_and_those_that_wait_are_answered(opened):
    answers = run(
        opened,
        """
        const loop = python.call("pdtlib._never_ends", "loop", {}, { limitMs: 500 }).catch(told);
        const after = python.call("pdtlib._never_ends", "double", { n: 21 });
        return [await loop, await after, python.status];
        """,
    )
    assert answers == [["Timeout", None], 42, "ready"]


def test_interrupt_after_limits_the_call_that_runs(opened):
    answers = run(
        opened,
        """
        const loop = python.call("pdtlib._never_ends", "loop").catch(told);
        python.interruptAfter(300);
        return [await loop, await python.call("pdtlib._never_ends", "double", { n: 1 })];
        """,
    )
    assert answers == [["Timeout", None], 2]


def test_restart_ends_what_runs(opened):
    answers = run(
        opened,
        """
        const loop = python.call("pdtlib._never_ends", "loop").catch(told);
        setTimeout(() => python.restart(), 200);
        return [await loop, await python.call("pdtlib._never_ends", "double", { n: 2 })];
        """,
    )
    assert answers == [["Interrupted", None], 4]


def test_of_many_moves_the_last_one_is_shown(opened):
    opened.locator('[data-control="accounting"]').select_option("megatron-18")
    states = opened.evaluate(
        """() => {
            const root = document.querySelector("[data-explorer]");
            const slider = root.querySelector('[data-control="ranks"]');
            for (const index of [3, 9, 1, 12, 6, 14]) {
                slider.value = String(index);
                slider.dispatchEvent(new Event("input", { bubbles: true }));
            }
            return JSON.parse(slider.dataset.keys)[14];
        }"""
    )
    opened.wait_for_selector('[data-explorer][data-state="live"]')
    view = catalog.get("zero").view_of({"accounting": "megatron-18", "ranks": states})
    assert opened.locator("[data-summary]").text_content() == view.summary
    shown = opened.locator("[data-readout] .pdt-number").all_text_contents()
    assert shown == [readout.text for readout in view.readouts]
    opened.wait_for_timeout(500)  # an answer to an earlier move would arrive now
    assert opened.locator("[data-summary]").text_content() == view.summary


def test_the_page_restores_the_state_of_its_address(opened):
    summary = opened.locator("[data-summary]").text_content()
    opened.reload()
    opened.wait_for_selector('[data-explorer][data-state="live"]')
    assert opened.locator("[data-summary]").text_content() == summary
