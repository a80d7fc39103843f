// The report of a grading as elements: what failed first, with its lesson; what passed folded away.

const FAILED_SHOWN = 3;

/** An element with a class, and children that are elements or texts (never HTML). */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function fold(summary, ...children) {
  return element("details", "pdt-exercise-fold", element("summary", "", summary), element("div", "", ...children));
}

function checkItem({ name, passed, message, expected, got }) {
  const item = element("li", passed ? "pdt-check-pass" : "pdt-check-fail");
  item.dataset.check = passed ? "pass" : "fail";
  item.append(element("p", "pdt-check-name", element("b", "", passed ? "Passed: " : "Failed: "), name));
  if (passed) return item;
  const values = [
    ["Expected", expected],
    ["Got", got],
  ].filter(([, value]) => value);
  if (values.length) {
    const list = element("dl", "pdt-check-values");
    for (const [term, value] of values) list.append(element("dt", "", term), element("dd", "", value));
    item.append(list);
  }
  if (message) item.append(element("p", "pdt-check-message", message));
  return item;
}

function checkList(checks) {
  return element("ul", "pdt-checks", ...checks.map(checkItem));
}

/** What the live region says. */
export function summary({ passed, checks }) {
  const done = checks.filter((check) => check.passed).length;
  if (passed) return `Solved: all ${checks.length} checks passed.`;
  const first = checks.find((check) => !check.passed);
  return `${done} of ${checks.length} checks passed. First to fail: ${first.name}.`;
}

/** Fill `target` with the report and set its data-result. */
export function showReport(target, report) {
  const failed = report.checks.filter((check) => !check.passed);
  const passed = report.checks.filter((check) => check.passed);
  const parts = [];
  if (failed.length) parts.push(checkList(failed.slice(0, FAILED_SHOWN)));
  if (failed.length > FAILED_SHOWN) {
    const rest = failed.slice(FAILED_SHOWN);
    parts.push(fold(`${rest.length} more failed`, checkList(rest)));
  }
  if (passed.length) {
    parts.push(fold(passed.length === 1 ? "1 check passed" : `${passed.length} checks passed`, checkList(passed)));
  }
  if (report.output) {
    const printed = element("pre", "pdt-exercise-output", report.output);
    printed.tabIndex = 0;
    const shown = fold("What your code printed", printed);
    shown.open = true;
    parts.push(shown);
  }
  target.dataset.result = report.passed ? "pass" : "fail";
  target.replaceChildren(...parts);
}

/** A report of one failed check, for an answer that gave none of its own. */
export function failure(name, message) {
  return { passed: false, checks: [{ name, passed: false, message, expected: "", got: "" }], output: "" };
}
