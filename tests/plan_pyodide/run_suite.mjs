// Runs tests in Pyodide: node run_suite.mjs PYODIDE_DIR WHEEL PACKAGES ROOT PROGRAM [ARGUMENT...]
//
// WHEEL is unpacked as in a browser. PACKAGES (pure Python) and tests/plan and benchmarks of ROOT are mounted.
// PROGRAM reads the ARGUMENTs as ARGUMENTS; the value of its last line is the exit status.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, wheel, packages, root, program, ...rest] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const pyodide = await loadPyodide({ indexURL: `${folder}/`, stdout: (line) => console.log(line) });
pyodide.unpackArchive(new Uint8Array(readFileSync(wheel)), "wheel", { extractDir: "/site" });
const mounts = { "/packages": packages, "/tests/plan": `${root}/tests/plan`, "/benchmarks": `${root}/benchmarks` };
for (const [path, here] of Object.entries(mounts)) {
  pyodide.FS.mkdirTree(path);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: here }, path);
}
pyodide.globals.set("ARGUMENTS", pyodide.toPy(rest));
process.exitCode = pyodide.runPython(readFileSync(program, "utf-8"));
