// Exercises on the page: editor, run, report, hints one at a time. The HTML comes from pdtlib.exercises.page.
// Python is loaded when the reader enters an editor or runs the checks, and not before.
import { python } from "../explore/python.js";
import { editor } from "./editor.js";
import { load, save } from "./progress.js";
import { failure, showReport, summary } from "./report.js";

const LOADING = "Loading Python (some 6 MB, once)…";

function setUp(section) {
  const id = section.dataset.exercise;
  const kept = load(id);
  showHints(section, id, kept.hints ?? 0);
  if (kept.solved) section.querySelector("[data-solved]").hidden = false;
  if (section.dataset.runsIn === "browser") setUpEditor(section, id, kept);
}

/** Hint n + 1 appears when hint n is opened. */
function showHints(section, id, opened) {
  const hints = [...section.querySelectorAll("[data-hint]")];
  hints.forEach((hint, index) => {
    hint.hidden = index > opened;
    hint.addEventListener("toggle", () => {
      if (!hint.open || index + 1 >= hints.length) return;
      hints[index + 1].hidden = false;
      save(id, { hints: Math.max(load(id).hints ?? 0, index + 1) });
    });
  });
}

function setUpEditor(section, id, kept) {
  const find = (name) => section.querySelector(`[data-${name}]`);
  const starter = JSON.parse(find("starter").textContent).source;
  const [run, stop, reset, status, report] = ["run", "stop", "reset", "status", "report"].map(find);
  /** @type {AbortController|null} */
  let running = null;

  const code = editor(find("editor"), {
    source: kept.source ?? starter,
    label: `exercise-${id}-label`,
    help: `exercise-${id}-help`,
    onChange: (source) => save(id, { source }),
    onFocus: () => python.preload(),
    onRun: grade,
  });
  for (const part of section.querySelectorAll("[data-needs-script]")) part.hidden = false;

  function setRunning(controller) {
    running = controller;
    const now = controller !== null;
    run.setAttribute("aria-disabled", String(now));
    stop.hidden = !now;
    section.setAttribute("aria-busy", String(now));
  }

  async function grade() {
    if (running) return;
    setRunning(new AbortController());
    delete report.dataset.result;
    report.replaceChildren();
    const unlisten = python.onStatus((state) => {
      status.textContent = state === "ready" ? "Running the checks…" : LOADING;
    });
    const limitMs = Number(section.dataset.limitS) * 1000;
    let result;
    try {
      const args = { id, source: code.source };
      result = await python.call("pdtlib.exercises.bridge", "grade", args, { limitMs, signal: running.signal });
    } catch (error) {
      result = notGraded(error);
    } finally {
      unlisten();
      setRunning(null);
    }
    if (result.stopped) {
      status.textContent = result.stopped;
      return;
    }
    showReport(report, result);
    status.textContent = summary(result);
    if (result.passed) {
      save(id, { solved: true });
      find("solved").hidden = false;
    }
  }

  /** What to show for a grading that ended without a report. */
  function notGraded(error) {
    const { entry, limitS } = section.dataset;
    if (error.type === "Timeout") {
      return failure(`${entry} ends within ${limitS} s`, `Stopped after ${limitS} s: does a loop never end?`);
    }
    if (error.type === "Interrupted") return { stopped: "Stopped." };
    if (error.type === "Unreachable") {
      return { stopped: `${error.message} Or grade on your machine: pdt grade ${id} FILE.py` };
    }
    return failure("The checks ran to their end", `${error.type}: ${error.message}`);
  }

  run.addEventListener("click", grade);
  stop.addEventListener("click", () => {
    running?.abort();
    run.focus();
  });
  reset.addEventListener("click", () => {
    code.source = starter;
    report.replaceChildren();
    delete report.dataset.result;
    status.textContent = "The starter is back. Undo (Ctrl+Z in the editor) brings your code back.";
    code.focus();
  });
}

for (const section of document.querySelectorAll("[data-exercise]")) setUp(section);
