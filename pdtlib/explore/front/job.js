// The job that a reader carries from one explorer to the next, kept in this browser, and its download.

const KEY = "pdtlib.job";

/** @returns {{job: string, from: string}|null} */
export function carried() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null; // storage is blocked, or holds something else
  }
}

/** @param {string} job TOML @param {string} from title of the explorer @returns {boolean} whether it was kept */
export function carry(job, from) {
  try {
    localStorage.setItem(KEY, JSON.stringify({ job, from }));
    window.dispatchEvent(new Event("pdtlib-job"));
    return true;
  } catch {
    return false;
  }
}

/** Be told when a job was carried, on this page or another. */
export function onCarried(listener) {
  window.addEventListener("pdtlib-job", listener);
  window.addEventListener("storage", (event) => event.key === KEY && listener());
}

/** Save a job as a file. */
export function download(job, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([job], { type: "application/toml" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
