// What the reader has done on an exercise, kept in this browser only.

const key = (id) => `pdtlib.exercise.${id}`;

/**
 * @param {string} id
 * @returns {{source?: string, solved?: boolean, hints?: number}}
 */
export function load(id) {
  try {
    const kept = JSON.parse(localStorage.getItem(key(id)));
    return kept !== null && typeof kept === "object" ? kept : {};
  } catch {
    return {}; // storage is off, or holds something else
  }
}

/** Keep `changes` beside what is kept already. */
export function save(id, changes) {
  try {
    localStorage.setItem(key(id), JSON.stringify({ ...load(id), ...changes }));
  } catch {
    // Storage is off or full: the exercise works, it is only not kept.
  }
}
