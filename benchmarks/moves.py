"""How soon explorers answer: a reader's first move on a quiet page, and later ones once Python is up.

:mod:`product` measures this with the pages. A move changes one control by one step, as a reader does, and
ends with the first frame that shows the new numbers and figure.
"""

from __future__ import annotations

import statistics
from typing import Any

PAGES_LOADED = 3
"""Fresh pages on which a first move is measured, each with another control."""
LATER_MOVES = 12

MOVE = """async (root, nth) => {
    const boxes = [...root.querySelectorAll("[data-for]:not([hidden])")]
        .filter((box) => box.querySelector("[data-control]").type !== "text");
    if (!boxes.length) return null;
    const inputs = [...boxes[nth % boxes.length].querySelectorAll("[data-control]")];
    let [input] = inputs;
    if (input.type === "radio") {
        input = inputs[(inputs.findIndex((radio) => radio.checked) + 1) % inputs.length];
        input.checked = true;
    } else if (input.type === "checkbox") input.checked = !input.checked;
    else if (input.type === "range") {
        input.value = Number(input.value) < Number(input.max) ? Number(input.value) + 1 : input.min;
    } else input.selectedIndex = (input.selectedIndex + 1) % input.options.length;
    const answered = new Promise((resolve) => {
        const observer = new MutationObserver(() => {
            if (root.dataset.state === "loading") return;
            observer.disconnect();
            resolve();
        });
        observer.observe(root, { attributes: true, attributeFilter: ["data-state"] });
    });
    const began = performance.now();
    input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
    await answered;
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    return { ms: performance.now() - began, from: root.dataset.state };
}"""
WARM = """async (root) => {
    const { python } = await import(document.querySelector('script[src*="/explorer.js"]').src
        .replace("/explorer.js", "/python.js"));
    const state = Object.fromEntries([...root.querySelectorAll("[data-for]")].map(
        (box) => [box.dataset.for, box.querySelector("[data-base]").dataset.base]));
    await python.call("pdtlib.explore.bridge", "view", { id: root.dataset.explorer, state });
}"""


def explorer_moves(browser: Any, address: str, path: str) -> list[dict[str, Any]]:
    """The explorers of one page: milliseconds of first moves, and of later ones by where they came from."""
    keys: list[str] = []
    first: dict[str, list[float]] = {}
    rows = []
    for nth in range(PAGES_LOADED):
        context, page = _open(browser, address + path)
        if nth == 0:
            keys = page.locator("[data-explorer]").evaluate_all(
                "(all) => all.map((root) => root.dataset.key)"
            )
        for key in keys:
            root = _ready(page, key)
            found = root.evaluate(MOVE, nth)
            if found:
                first.setdefault(key, []).append(found["ms"])
        context.close()
    context, page = _open(browser, address + path)
    for key in keys:
        root = _ready(page, key)
        root.evaluate(WARM)
        later: dict[str, list[float]] = {"table": [], "live": [], "error": []}
        for nth in range(LATER_MOVES + 1):
            found = root.evaluate(MOVE, nth)
            if found and nth:  # the first live move may still import what another control needs
                later[found["from"]].append(found["ms"])
        rows.append(
            {
                "page": path,
                "explorer": root.get_attribute("data-explorer"),
                "first_ms": _summary(first.get(key, [])),
                "later_from_table_ms": _summary(later["table"]),
                "later_from_python_ms": _summary(later["live"]),
            }
        )
    context.close()
    return rows


def empty_page(browser: Any) -> tuple[Any, Any]:
    """(context, page) with nothing in the cache."""
    context = browser.new_context(service_workers="block", viewport={"width": 1280, "height": 900})
    context.set_default_timeout(150_000)
    return context, context.new_page()


def _open(browser: Any, address: str) -> tuple[Any, Any]:
    context, page = empty_page(browser)
    page.goto(address, wait_until="networkidle")
    return context, page


def _ready(page: Any, key: str) -> Any:
    """The explorer in view, its figure drawn, the page at rest."""
    root = page.locator(f'[data-explorer][data-key="{key}"][data-alive]')
    root.locator("[data-figure]").scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    return root


def _summary(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "worst": max(values), "moves": len(values)}
