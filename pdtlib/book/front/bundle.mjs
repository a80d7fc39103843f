// node bundle.mjs ENTRY TARGET: one ES module out of a module of pdtlib and what it imports from npm.
// Imports by a relative path stay imports: those modules are files of the site of their own.
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const [entry, target] = process.argv.slice(2);
await build({
  entryPoints: [entry],
  outfile: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  // Entries lie in other folders of pdtlib; their npm packages lie here.
  nodePaths: [fileURLToPath(new URL("node_modules", import.meta.url))],
  legalComments: "eof",
  logLevel: "warning",
  plugins: [
    {
      name: "modules-of-other-folders-stay-imports",
      setup({ onResolve }) {
        onResolve({ filter: /^\.\.\// }, ({ path, importer }) =>
          importer.includes("node_modules") ? undefined : { path, external: true },
        );
      },
    },
  ],
});
