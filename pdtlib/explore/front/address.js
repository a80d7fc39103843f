// The state of every explorer on a page, in the page's address: ?zero.gpus=64&overlap.bucket=25
//
// Only what differs from the page as written is there. The address is replaced, not pushed: the back button leaves the
// page in one step, as the reader expects, and headings' own #anchors stay untouched.

/** @param {string} key the explorer's key @returns {Record<string, string>} */
export function stateFromAddress(key) {
  const prefix = `${key}.`;
  const found = [...new URLSearchParams(location.search)].filter(([name]) => name.startsWith(prefix));
  return Object.fromEntries(found.map(([name, value]) => [name.slice(prefix.length), value]));
}

/** The page's address with this explorer in this state. @returns {URL} */
function addressOf(key, state, base) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(state)) {
    if (value === base[name]) url.searchParams.delete(`${key}.${name}`);
    else url.searchParams.set(`${key}.${name}`, value);
  }
  return url;
}

const RETRY_MS = 1000;
let retry = 0;

/** Put the state into the address bar. A browser that has had enough changes for now gets the newest one later. */
export function stateToAddress(key, state, base) {
  clearTimeout(retry);
  const url = addressOf(key, state, base);
  if (url.href === location.href) return;
  try {
    history.replaceState(history.state, "", url);
  } catch {
    retry = setTimeout(() => stateToAddress(key, state, base), RETRY_MS);
  }
}

/** A link that opens the page at this explorer, in this state alone. @returns {string} */
export function linkTo(key, state, base) {
  const url = addressOf(key, state, base);
  for (const name of [...url.searchParams.keys()]) if (!name.startsWith(`${key}.`)) url.searchParams.delete(name);
  url.hash = `explorer-${key}`;
  return url.href;
}
