// Python for the page: one worker, shared by every explorer and exercise, started at the first call or preload().
//
//   import { python } from "./python.js";
//   const view = await python.call("pdtlib.explore.bridge", "view", { id: "zero", state: { gpus: "64" } });
//
// Calls run one after another in the order in which they were made. A call that outlives its limit is stopped by
// ending the worker; the next call gets a fresh interpreter and the calls still waiting are not lost.

/** An exception raised in Python, or the failure to reach Python at all. */
export class PythonError extends Error {
  /** @param {{type: string, message: string, field?: string|null, traceback?: string}} error */
  constructor(error) {
    super(error.message);
    this.name = "PythonError";
    this.type = error.type;
    /** Name of the control or job field concerned, if the exception names one. */
    this.field = error.field ?? null;
    this.traceback = error.traceback ?? "";
  }
}

const UNREACHABLE =
  location.protocol === "file:"
    ? "Python cannot start on a page opened as a file. Serve the site (make serve) to compute live."
    : "Python could not be loaded, so only the prepared answers are available.";

/** @typedef {"idle"|"booting"|"ready"|"failed"} Status */

class Python {
  /** @type {Status} */ status = "idle";
  #worker = null;
  #waiting = []; // calls not yet sent
  #current = null; // the call in the worker
  #limitMs = 0;
  #timer = 0;
  #nextId = 1;
  #listeners = new Set();

  /**
   * Call a function of pdtlib with keyword arguments; resolves to its (JSON) result.
   * @param {string} module e.g. "pdtlib.explore.bridge"
   * @param {string} name
   * @param {object} args keyword arguments
   * @param {{limitMs?: number, signal?: AbortSignal}} [options] `limitMs` stops the call after this much running
   *   time (loading Python not counted); `signal` takes it back, also while it waits for Python
   * @returns {Promise<any>} rejects with PythonError; its type is "Timeout" when the limit stopped it, "Interrupted"
   *   when the signal did
   */
  call(module, name, args = {}, { limitMs = 0, signal } = {}) {
    return new Promise((resolve, reject) => {
      const message = { id: this.#nextId++, module, name, arguments: JSON.stringify(args) };
      const call = { message, limitMs, resolve, reject };
      signal?.addEventListener("abort", () => this.#takeBack(call), { once: true });
      this.#waiting.push(call);
      this.#start();
      this.#next();
    });
  }

  /** Start loading without calling anything. */
  preload() {
    this.#start();
  }

  /** Stop whatever runs now (its call is rejected with type "Interrupted") and start a fresh interpreter. */
  restart() {
    this.#stop({ type: "Interrupted", message: "Stopped; Python starts afresh." });
    this.#start();
  }

  /**
   * Give the call that runs now at most `ms` more milliseconds, or, if none runs, limit the next one.
   * @param {number} ms
   */
  interruptAfter(ms) {
    this.#limitMs = ms;
    if (this.#current && this.status === "ready") this.#arm();
  }

  /**
   * Be told of every change of `status`; called once at once.
   * @param {(status: Status) => void} listener
   * @returns {() => void} stops listening
   */
  onStatus(listener) {
    this.#listeners.add(listener);
    listener(this.status);
    return () => this.#listeners.delete(listener);
  }

  #setStatus(status) {
    this.status = status;
    for (const listener of this.#listeners) listener(status);
  }

  #start() {
    if (this.#worker) return;
    this.#setStatus("booting");
    try {
      this.#worker = new Worker(new URL("./python-worker.js", import.meta.url), { type: "module" });
    } catch (error) {
      this.#fail(String(error));
      return;
    }
    this.#worker.onmessage = ({ data }) => this.#receive(data);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#fail(event.message ?? "the worker's script did not load");
    };
  }

  #receive(data) {
    if (data.ready) {
      this.#setStatus("ready");
      this.#next();
    } else if (data.failed !== undefined) {
      this.#fail(data.failed);
    } else if (data.id === this.#current?.message.id) {
      const { resolve, reject } = this.#take();
      const answer = JSON.parse(data.answer);
      if (answer.error) reject(new PythonError(answer.error));
      else resolve(answer.ok);
      this.#next();
    }
  }

  #next() {
    if (this.status !== "ready" || this.#current || this.#waiting.length === 0) return;
    this.#current = this.#waiting.shift();
    this.#limitMs = this.#current.limitMs || this.#limitMs;
    this.#arm();
    this.#worker.postMessage(this.#current.message);
  }

  #arm() {
    clearTimeout(this.#timer);
    if (!this.#limitMs) return;
    const seconds = this.#limitMs / 1000;
    this.#timer = setTimeout(() => {
      this.#stop({ type: "Timeout", message: `Stopped after ${seconds} s: does a loop never end?` });
      this.#start();
    }, this.#limitMs);
  }

  #takeBack(call) {
    if (call === this.#current) this.restart();
    if (!this.#waiting.includes(call)) return;
    this.#waiting.splice(this.#waiting.indexOf(call), 1);
    call.reject(new PythonError({ type: "Interrupted", message: "Stopped." }));
  }

  #take() {
    clearTimeout(this.#timer);
    this.#limitMs = 0;
    const current = this.#current;
    this.#current = null;
    return current;
  }

  #stop(error) {
    this.#worker?.terminate();
    this.#worker = null;
    this.#setStatus("idle");
    if (this.#current) this.#take().reject(new PythonError(error));
  }

  #fail(detail) {
    this.#worker?.terminate();
    this.#worker = null; // the next call tries again
    console.warn(`pdtlib: ${UNREACHABLE} (${detail})`);
    const calls = [...(this.#current ? [this.#take()] : []), ...this.#waiting.splice(0)];
    this.#setStatus("failed");
    for (const { reject } of calls) reject(new PythonError({ type: "Unreachable", message: UNREACHABLE }));
  }
}

export const python = new Python();
