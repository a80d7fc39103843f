// The panels of a view: figure, table and texts to copy, each under its heading. The markup is pdtlib.explore.panels'.

import { draw, embedded, whenNear } from "./figure.js";
import { element, swatch, table } from "./render.js";

export class Panels {
  #newest = new Map(); // element of a figure -> the figure to draw once it is near

  /** @param {HTMLElement} root of the explorer @param {{copy: string, copied: string}} words */
  constructor(root, words) {
    this.words = words;
    this.boxes = new Map([...root.querySelectorAll("[data-panel]")].map((box) => [box.dataset.panel, box]));
    for (const box of this.boxes.values()) {
      const place = box.querySelector("[data-panel-figure]");
      this.#draw(place, embedded(place));
      box.addEventListener("click", (event) => this.#copy(event));
    }
  }

  /** @param {object[]} panels those of the view to show */
  show(panels = []) {
    for (const { name, summary, figure, legend, table: data, files } of panels) {
      const place = (part) => this.boxes.get(name).querySelector(part);
      place("[data-panel-summary]").textContent = summary;
      place("[data-legend]").replaceChildren(...legend.map(swatch));
      place("details").hidden = !data;
      place("[data-panel-table]").replaceChildren(...(data ? [table(data)] : []));
      place("[data-panel-files]").replaceChildren(...files.map((file) => this.#file(file)));
      const drawing = place("[data-panel-figure]");
      drawing.hidden = !figure;
      drawing.setAttribute("aria-label", summary);
      if (!figure && !files.length) place("details").open = true;
      this.#draw(drawing, figure);
    }
  }

  #draw(place, figure) {
    const waits = this.#newest.get(place);
    this.#newest.set(place, figure);
    if (!figure || waits) return;
    whenNear(place, () => {
      const newest = this.#newest.get(place);
      this.#newest.delete(place);
      if (newest) draw(place, newest);
    });
  }

  #file({ name, text }) {
    return element(
      "div",
      { class: "pdt-file" },
      element(
        "p",
        { class: "pdt-file-name" },
        element("span", {}, name),
        element("button", { type: "button", "data-copy": "true" }, this.words.copy),
      ),
      element("pre", { tabindex: "0", role: "region", "aria-label": name }, text),
    );
  }

  async #copy({ target }) {
    if (!target.matches("[data-copy]")) return;
    const text = target.closest(".pdt-file").querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      target.textContent = this.words.copied;
    } catch {
      getSelection().selectAllChildren(text); // no clipboard here: what is selected can be copied by hand
    }
  }
}
