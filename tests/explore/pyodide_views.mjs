// Evaluates explorer states in Pyodide: node pyodide_views.mjs PYODIDE_DIR PDTLIB_ZIP STATES_JSON > VIEWS_JSON
//
// STATES_JSON is [{"id", "state"}]; the output is one line of canonical JSON per state, made in Python.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, zip, states] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`).href);
const pyodide = await loadPyodide({ indexURL: `${folder}/` });
pyodide.unpackArchive(new Uint8Array(readFileSync(zip)), "zip", { extractDir: "/site" });
pyodide.globals.set("states", readFileSync(states, "utf-8"));
const lines = pyodide.runPython(`
import json, sys
sys.path.insert(0, "/site")
from pdtlib.explore.bridge import call

def line(request):
    answer = json.loads(call("pdtlib.explore.bridge", "view", json.dumps(request)))
    answer.get("error", {}).pop("traceback", None)
    return json.dumps(answer, sort_keys=True)

"\\n".join(map(line, json.loads(states)))
`);
process.stdout.write(`${lines}\n`);
