// Where the views of one explorer come from: the build-time table if it has the state, Python otherwise.

import { python, PythonError } from "./python.js";

const BRIDGE = "pdtlib.explore.bridge";

/** @typedef {import("./controls.js").State} State */

export class Source {
  #table = null;
  #wanted = null; // the newest request not yet sent to Python
  #busy = false;

  /** @param {string} id @param {string} tableName @param {State} base */
  constructor(id, tableName, base) {
    this.id = id;
    this.base = base;
    this.tableUrl = new URL(`../tables/${tableName}`, import.meta.url);
  }

  /** Fetch the table (once). A page without it still works, through Python. */
  table() {
    this.#table ??= fetch(this.tableUrl)
      .then((response) => (response.ok ? response.json() : {}))
      .catch(() => ({}));
    return this.#table;
  }

  /** The table's answer, or undefined. Throws PythonError if the table holds an error for the state. */
  async fromTable(state) {
    const changed = Object.keys(state).filter((name) => state[name] !== this.base[name]);
    const table = await this.table();
    const answer = table[changed.map((name) => `${name}=${state[name]}`).join("&")];
    if (answer?.error) throw new PythonError(answer.error);
    return answer?.panels ? { ...answer, panels: answer.panels.map((place) => table.panels[place]) } : answer;
  }

  /**
   * Python's answer. Only the newest request counts: one that was overtaken resolves to null.
   * @param {State} state
   * @returns {Promise<object|null>}
   */
  live(state) {
    this.#wanted?.resolve(null);
    return new Promise((resolve, reject) => {
      this.#wanted = { state, resolve, reject };
      this.#pump();
    });
  }

  /** Load Python and let it compute once, so that the first live answer need not wait for imports. */
  warm() {
    python.call(BRIDGE, "view", { id: this.id, state: this.base }).catch(() => {}); // a real request will say why
  }

  /** Forget the request that waits, if any: the reader moved on. */
  drop() {
    this.#wanted?.resolve(null);
    this.#wanted = null;
  }

  async #pump() {
    if (this.#busy) return;
    this.#busy = true;
    while (this.#wanted) {
      const { state, resolve, reject } = this.#wanted;
      this.#wanted = null;
      try {
        const view = await python.call(BRIDGE, "view", { id: this.id, state });
        resolve(this.#wanted ? null : view);
      } catch (error) {
        if (this.#wanted) resolve(null);
        else reject(error);
      }
    }
    this.#busy = false;
  }

  /** The table of what changed from one state to another. */
  compare(state, pinned) {
    return python.call(BRIDGE, "compare", { id: this.id, state, pinned });
  }

  /** The state nearest to a job. @param {string} job TOML @returns {Promise<State>} */
  adopt(job) {
    return python.call(BRIDGE, "adopt", { id: this.id, job });
  }
}
