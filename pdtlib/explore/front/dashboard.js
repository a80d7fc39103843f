// Opens the reader's own trace.json and metrics.jsonl; nothing leaves the browser.

import { draw, embedded, whenNear } from "./figure.js";
import { python } from "./python.js";
import { render } from "./render.js";

class Dashboard {
  #ticket = 0; // of the newest files; answers to older ones are dropped

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.words = JSON.parse(root.dataset.words);
    this.figure = root.querySelector("[data-figure]");
    for (const input of root.querySelectorAll("input[type=file]")) {
      input.addEventListener("click", () => python.preload());
      input.addEventListener("change", () => this.#open());
    }
    const first = embedded(this.figure);
    whenNear(this.figure, () => this.#ticket || draw(this.figure, first));
    root.dataset.alive = "";
  }

  async #open() {
    const [trace, metrics] = ["trace", "metrics"].map((name) => this.root.querySelector(`[name=${name}]`).files[0]);
    if (!trace) return;
    const ticket = ++this.#ticket;
    this.#problem("");
    if (Math.max(trace.size, metrics?.size ?? 0) > 1e6 * this.root.dataset.largestMb) {
      return this.#problem(this.words.too_large);
    }
    this.#state("loading", python.status === "ready" ? this.words.reading : this.words.starting);
    try {
      const texts = { trace: await trace.text(), metrics: (await metrics?.text()) ?? "" };
      const view = await python.call("pdtlib.explore.dashboard", "of_files", texts);
      if (ticket !== this.#ticket) return;
      render(this.root, view);
      draw(this.figure, view.figure);
      this.#state("live", "");
    } catch (error) {
      if (ticket !== this.#ticket) return;
      this.#problem(error.type === "Unreachable" ? this.words.unreachable : error.message);
    }
  }

  #state(state, message) {
    this.root.dataset.state = state;
    this.root.setAttribute("aria-busy", String(state === "loading"));
    this.root.querySelector("[data-status]").textContent = message;
  }

  #problem(message) {
    this.#state(message ? "error" : "", "");
    const problem = this.root.querySelector("[data-problem]");
    problem.textContent = message;
    problem.hidden = message === "";
  }
}

for (const root of document.querySelectorAll("[data-dashboard]")) new Dashboard(root);
