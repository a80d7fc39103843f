"""How soon explorers answer: a reader's first move on a quiet page, and later ones once Python is up.

:mod:`product` measures this with the pages. A move changes one control by one step, as a reader does; it is
answered with the first frame that shows the new numbers, and done with the first that shows the new figure.
"""

from __future__ import annotations

import statistics
from typing import Any

PAGES_LOADED = 3
"""Fresh pages on which a first move is measured, each with another control."""
LATER_MOVES = 12

Move = dict[str, Any]
"""What ``MOVE`` returns: ms until new ``numbers`` and the new ``figure`` are shown, and ``from`` where."""

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
    const figure = root.querySelector("[data-figure]");
    const drawn = new Promise((resolve) => figure.once("plotly_react", resolve));
    // The first task after a frame's painting; a timer would wait for whatever else is due.
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = resolve;
        port2.postMessage(0);
    }));
    const began = performance.now();
    input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
    await answered;
    await frame();
    const numbers = performance.now() - began;
    const from = root.dataset.state;
    if (from === "error") return { numbers, figure: numbers, from }; // the figure stays as it was
    await drawn;
    await frame();
    return { numbers, figure: performance.now() - began, from };
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
    rows = []
    context, page = _open(browser, address + path)
    keys = page.locator("[data-explorer]").evaluate_all("(all) => all.map((root) => root.dataset.key)")
    for key in keys:
        first = [
            found for nth in range(PAGES_LOADED) if (found := _first_move(browser, address + path, key, nth))
        ]
        root = _ready(page, key)
        root.evaluate(WARM)
        later: dict[str, list[Move]] = {"table": [], "live": [], "error": []}
        for nth in range(LATER_MOVES + 1):
            found = root.evaluate(MOVE, nth)
            if found and nth:  # the first live move may still import what another control needs
                later[found["from"]].append(found)
        rows.append(
            {
                "page": path,
                "explorer": root.get_attribute("data-explorer"),
                "first_ms": _summary(first),
                "later_from_table_ms": _summary(later["table"]),
                "later_from_python_ms": _summary(later["live"]),
            }
        )
    context.close()
    return rows


def _first_move(browser: Any, address: str, key: str, nth: int) -> Move | None:
    """On a fresh page, as any explorer's move lets Python start, which is busy for some seconds."""
    context, page = _open(browser, address)
    found: Move | None = _ready(page, key).evaluate(MOVE, nth)
    context.close()
    return found


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


def _summary(moves: list[Move]) -> dict[str, float] | None:
    if not moves:
        return None
    numbers = [move["numbers"] for move in moves]
    return {
        "median": statistics.median(numbers),
        "worst": max(numbers),
        "figure_median": statistics.median(move["figure"] for move in moves),
        "moves": len(moves),
    }
