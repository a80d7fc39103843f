// Runs a Python program on pdtlib in Pyodide: node pyodide_plan.mjs PYODIDE_DIR PDTLIB_ZIP PROGRAM; prints its `report`.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, zip, program] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const pyodide = await loadPyodide({ indexURL: `${folder}/` });
pyodide.unpackArchive(new Uint8Array(readFileSync(zip)), "zip", { extractDir: "/site" });
pyodide.runPython('import sys; sys.path.insert(0, "/site")');
pyodide.runPython(readFileSync(program, "utf-8"));
process.stdout.write(`${pyodide.globals.get("report")}\n`);
