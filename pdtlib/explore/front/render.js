// Puts a view (pdtlib.explore.view) into the page. The markup is that of pdtlib.explore.page.

/** @returns {HTMLElement} */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== "") node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function swatch({ name, label, color, pattern, text }) {
  return element(
    "li",
    { "data-swatch": name },
    element("span", { class: "pdt-swatch", "data-color": color, "data-pattern": pattern, "aria-hidden": "true" }),
    element("span", { class: "pdt-label" }, label),
    ...(text ? [element("span", { class: "pdt-value" }, text)] : []),
  );
}

function readout({ name, label, text, value, note, tone }) {
  return element(
    "div",
    { "data-readout": name, "data-value": value, "data-tone": tone },
    element("dt", {}, label),
    element(
      "dd",
      {},
      element("span", { class: "pdt-number" }, text),
      ...(note ? [element("span", { class: "pdt-note" }, note)] : []),
    ),
  );
}

/** @param {{caption: string, columns: string[], rows: string[][]}} data */
export function table({ caption, columns, rows }) {
  return element(
    "table",
    {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...columns.map((text) => element("th", { scope: "col" }, text)))),
    element(
      "tbody",
      {},
      ...rows.map(([head, ...cells]) =>
        element("tr", {}, element("th", { scope: "row" }, head), ...cells.map((cell) => element("td", {}, cell))),
      ),
    ),
  );
}

/** A view without a job, such as a bare number of parameters, has none to carry or download; a click says so. */
export function enableJob(root, job) {
  for (const button of root.querySelectorAll('[data-action="carry"], [data-action="download"]')) {
    if (job === "") button.setAttribute("aria-disabled", "true");
    else button.removeAttribute("aria-disabled");
  }
}

/**
 * Show a view's words and numbers; its figure is drawn by figure.js.
 * @param {HTMLElement} root the explorer
 * @param {object} view
 */
export function render(root, view) {
  const place = (name) => root.querySelector(`[data-${name}]`);
  const summary = place("summary");
  if (summary.textContent !== view.summary) summary.textContent = view.summary;
  place("figure").setAttribute("aria-label", view.summary);
  place("legend").replaceChildren(...view.legend.map(swatch));
  place("readouts").replaceChildren(...view.readouts.map(readout));
  place("notes").replaceChildren(...view.notes.map((note) => element("p", {}, note)));
  place("alternative").replaceChildren(table(view.table));
  place("job").textContent = JSON.stringify(view.job);
  enableJob(root, view.job);
}
