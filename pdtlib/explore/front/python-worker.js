// One Python interpreter (Pyodide) in a module worker.
//
// Paths are relative to this file, so the site works under any sub-path:
//   vendor/pdt/explore/python-worker.js   this file
//   vendor/pyodide/                       Pyodide's own files
//   vendor/pdt/pdtlib.zip                 the pure part of pdtlib (pdtlib.explore.bundle)
//
// Messages in:  {id, module, name, arguments}   arguments is JSON text
// Messages out: {ready: true} | {failed: message} | {id, answer}   answer is JSON text, see pdtlib.explore.bridge

import { loadPyodide } from "../../pyodide/pyodide.mjs";

const SITE = "/pdtlib-site";

async function boot() {
  const archive = fetch(new URL("../pdtlib.zip", import.meta.url)).then((response) => {
    if (!response.ok) throw new Error(`pdtlib.zip: HTTP ${response.status}`);
    return response.arrayBuffer();
  });
  const [pyodide, zip] = await Promise.all([
    loadPyodide({ indexURL: new URL("../../pyodide/", import.meta.url).href }),
    archive,
  ]);
  pyodide.unpackArchive(zip, "zip", { extractDir: SITE });
  pyodide.runPython(`import sys; sys.path.insert(0, "${SITE}")`);
  return pyodide.pyimport("pdtlib.explore.bridge");
}

const booted = boot();

booted.then(
  () => self.postMessage({ ready: true }),
  (error) => self.postMessage({ failed: String(error?.message ?? error) }),
);

self.onmessage = async (event) => {
  const { id, module, name, arguments: args } = event.data;
  const bridge = await booted;
  self.postMessage({ id, answer: bridge.call(module, name, args) });
};
