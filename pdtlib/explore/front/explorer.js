// Brings the explorers of a page to life. See README.md for the markup and for what may be relied upon.

import { linkTo, stateFromAddress, stateToAddress } from "./address.js";
import { Controls } from "./controls.js";
import { draw, embedded, whenNear } from "./figure.js";
import { carried, carry, download, onCarried } from "./job.js";
import { Panels } from "./panels.js";
import { player } from "./player.js";
import { python } from "./python.js";
import { render, table } from "./render.js";
import { Source } from "./source.js";

const whenIdle = window.requestIdleCallback ?? ((callback) => setTimeout(callback, 200));

class Explorer {
  #ticket = 0; // of the newest request; answers to older ones are dropped
  #pinned = null;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.key = root.dataset.key;
    this.words = JSON.parse(root.dataset.words);
    this.figure = root.querySelector("[data-figure]");
    this.view = { figure: embedded(this.figure), job: JSON.parse(root.querySelector("[data-job]").textContent) };
    this.controls = new Controls(root.querySelector("form"), () => this.#moved());
    this.panels = new Panels(root, this.words);
    this.base = this.controls.base();
    this.source = new Source(root.dataset.explorer, root.dataset.table, this.base);
    for (const play of root.querySelectorAll("[data-play]")) player(play.closest("[data-for]"), this.controls);
    for (const button of root.querySelectorAll("[data-action]")) {
      button.addEventListener("click", () => this[button.dataset.action]());
    }
    this.figure.addEventListener("pdt-pick", ({ detail }) => this.controls.choose(detail.name, detail.key));
    onCarried(() => this.#offerJob());
    this.#offerJob();
    window.addEventListener("popstate", () => this.#restore());
    python.onStatus(() => this.#showStatus());
    this.#loadPythonWhenNear();
    whenIdle(() => this.source.table());
    root.dataset.alive = "";
    whenNear(this.figure, () => draw(this.figure, this.view.figure));
    if (Object.keys(stateFromAddress(this.key)).length) this.#restore();
  }

  /** Load Python once the reader comes near, when the page is idle; not on a connection that saves data. */
  #loadPythonWhenNear() {
    const near = () => {
      for (const name of ["pointerenter", "focusin", "touchstart"]) this.root.removeEventListener(name, near);
      if (!navigator.connection?.saveData) whenIdle(() => this.source.warm());
    };
    for (const name of ["pointerenter", "focusin", "touchstart"]) {
      this.root.addEventListener(name, near, { passive: true });
    }
  }

  #restore() {
    this.controls.assign({ ...this.base, ...stateFromAddress(this.key) });
    this.#show();
  }

  async #moved() {
    this.root.dataset.moved = "";
    stateToAddress(this.key, this.controls.state(), this.base);
    await this.#show();
    whenIdle(() => python.preload()); // not before: its start would slow down a move that the table answers
  }

  /** Show the view of the controls' state: from the table if it is there, else from Python. */
  async #show() {
    const ticket = ++this.#ticket;
    const state = this.controls.state();
    this.source.drop();
    this.controls.settle();
    try {
      let view = await this.source.fromTable(state);
      const from = view ? "table" : "live";
      if (!view && ticket === this.#ticket) {
        this.#setState("loading");
        view = await this.source.live(state);
      }
      if (view && ticket === this.#ticket) this.#present(view, from);
    } catch (error) {
      if (ticket === this.#ticket) this.#fail(error);
    }
  }

  #present(view, from) {
    this.view = view;
    render(this.root, view);
    this.root.querySelector("[data-problem]").hidden = true;
    this.controls.limit(view.limits);
    stateToAddress(this.key, this.controls.state(), this.base);
    this.#setState(from);
    draw(this.figure, view.figure);
    this.panels.show(view.panels);
    this.#compare();
  }

  #fail(error) {
    this.#setState("error");
    const message = this.#message(error);
    if (error.field && this.controls.complain(error.field, message)) return;
    const problem = this.root.querySelector("[data-problem]");
    problem.textContent = message;
    problem.hidden = false;
  }

  #message(error) {
    return error.type === "Unreachable" ? this.words.unreachable : error.message;
  }

  #setState(state) {
    this.root.dataset.state = state;
    this.root.setAttribute("aria-busy", String(state === "loading"));
    if (state === "loading") this.#showStatus();
    else this.#say("");
  }

  #showStatus() {
    if (this.root.dataset.state !== "loading") return;
    this.#say(python.status === "ready" ? this.words.computing : this.words.starting);
  }

  #say(message) {
    this.root.querySelector("[data-status]").textContent = message;
  }

  // What the buttons do, by their data-action.

  reset() {
    this.controls.assign(this.base);
    this.#moved();
  }

  async link() {
    const address = linkTo(this.key, this.controls.state(), this.base);
    try {
      await navigator.clipboard.writeText(address);
      this.#say(this.words.linked);
    } catch {
      this.#say(address); // no clipboard here: show the address to copy
    }
  }

  pin() {
    this.#pinned = this.#pinned ? null : this.controls.state();
    const button = this.root.querySelector('[data-action="pin"]');
    button.setAttribute("aria-pressed", String(this.#pinned !== null));
    button.textContent = this.#pinned ? this.words.unpin : this.words.pin;
    this.#compare();
  }

  carry() {
    if (this.view.job === "") return this.#say(this.words.no_job);
    this.#say(carry(this.view.job, this.root.dataset.title) ? this.words.carried : this.words.not_carried);
  }

  async adopt() {
    python.preload();
    this.#say(this.words.starting);
    try {
      this.controls.assign({ ...this.base, ...(await this.source.adopt(carried().job)) });
      await this.#moved();
      this.#say(this.words.adopted);
    } catch (error) {
      this.#fail(error);
    }
  }

  download() {
    if (this.view.job === "") return this.#say(this.words.no_job);
    download(this.view.job, `${this.key}.toml`);
  }

  #offerJob() {
    const button = this.root.querySelector('[data-action="adopt"]');
    if (!button) return;
    const kept = carried();
    button.hidden = kept === null;
    button.title = kept?.from ?? "";
  }

  /** What changed since the pinned state, under the figure. */
  async #compare() {
    const box = this.root.querySelector("[data-compare]");
    box.hidden = this.#pinned === null;
    if (box.hidden) return;
    const ticket = this.#ticket;
    const state = this.controls.state();
    if (Object.keys(state).every((name) => state[name] === this.#pinned[name])) {
      box.textContent = this.words.pinned;
      return;
    }
    if (python.status !== "ready") box.textContent = this.words.starting;
    try {
      const changes = await this.source.compare(state, this.#pinned);
      if (ticket === this.#ticket && this.#pinned) box.replaceChildren(table(changes));
    } catch (error) {
      if (ticket === this.#ticket) box.textContent = this.#message(error);
    }
  }
}

for (const root of document.querySelectorAll("[data-explorer]")) new Explorer(root);
