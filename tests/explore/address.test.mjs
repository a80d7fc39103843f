// The state in the page's address: node address.test.mjs FRONT_DIR; prints one line of JSON.

import { pathToFileURL } from "node:url";

globalThis.location = new URL("https://book.example/sub/02.html?q=ring&overlap.bucket=50#zero");
globalThis.history = {
  state: null,
  replaceState(_state, _title, url) {
    globalThis.location = new URL(url);
  },
};
const { stateFromAddress, stateToAddress, linkTo } = await import(pathToFileURL(`${process.argv[2]}/address.js`).href);

const base = { ranks: "8", model: "70b", note: "a" };
const state = { ranks: "64", model: "70b", note: "1 & 2 = ü/%" };
stateToAddress("zero", state, base);
const shared = location.href;
const restored = { ...base, ...stateFromAddress("zero") };
const others = stateFromAddress("overlap");
const link = linkTo("zero", state, base);
stateToAddress("zero", base, base);
console.log(JSON.stringify({ shared, restored, others, link, after: location.href }));
