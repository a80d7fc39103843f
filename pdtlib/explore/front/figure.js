// Draws figures: plotly is loaded once, colour tokens become the colours of the reader's theme, and every figure is
// redrawn when the theme changes. Also draws the page's plain figures, <div data-figure> outside explorers.

/** @typedef {{data: object[], layout: object}} Figure */

const NARROW_PX = 480;
const drawn = new Map(); // element -> {figure, width, stale, done}
let plotly = null;

/** Load plotly (once). @returns {Promise<object>} */
function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    const script = document.createElement("script");
    script.src = new URL("../../plotly/plotly-cartesian.min.js", import.meta.url).href;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly did not load"));
    document.head.append(script);
  });
  return plotly;
}

/** The figure with "@name" replaced by the custom property --pdt-name of the page's theme. */
function themed(value, style) {
  if (typeof value === "string") return value.startsWith("@") ? style.getPropertyValue(`--pdt-${value.slice(1)}`) : value;
  if (Array.isArray(value)) return value.map((item) => themed(item, style));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, themed(item, style)]));
  }
  return value;
}

/** Replace what a layout or trace wants otherwise on a narrow screen: meta.narrow, values by dotted path. */
function narrow(part) {
  for (const [path, value] of Object.entries(part.meta?.narrow ?? {})) {
    const names = path.split(".");
    const last = names.pop();
    const place = names.reduce((inner, name) => (inner[name] ??= {}), part);
    place[last] = value;
  }
}

/**
 * Draw a figure in an element, or redraw it there. Drawings of one element follow one another; the newest wins.
 * @param {HTMLElement} element
 * @param {Figure} figure
 */
export function draw(element, figure) {
  const state = drawn.get(element) ?? { done: null, width: 0 };
  drawn.set(element, state);
  state.figure = figure;
  state.stale = true;
  state.done ??= drawNewest(element, state);
  widths.observe(element);
  return state.done;
}

async function drawNewest(element, state) {
  try {
    const Plotly = await loadPlotly();
    while (state.stale) {
      // Plotly keeps the page busy for longer than the rest of a move takes: what was written before is shown first.
      await painted();
      state.stale = false;
      state.width = element.clientWidth;
      const style = getComputedStyle(element);
      const { data, layout } = themed(state.figure, style);
      if (state.width < NARROW_PX) for (const part of [layout, ...data]) narrow(part);
      layout.font = { ...layout.font, family: style.fontFamily };
      layout.width = state.width;
      element.style.minHeight = `${layout.height ?? 320}px`;
      await Plotly.react(element, data, layout, { displayModeBar: false, ...state.figure.config });
      if (layout.meta?.pick) listen(element, state);
    }
  } catch (error) {
    console.warn(`pdtlib: a figure could not be drawn (${error.message}); its table stands below it.`);
  } finally {
    state.done = null;
  }
}

/** The next frame is on the screen; in a page that is not shown there are none, and nothing to wait for. */
function painted() {
  if (document.hidden) return Promise.resolve();
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** Tell of a click on a point that stands for a control's key: event "pdt-pick" with {name, key}. */
function listen(element, state) {
  if (state.listens) return;
  state.listens = true;
  element.dataset.pick = "";
  element.on("plotly_click", ({ points }) => {
    const key = points[0]?.customdata;
    const name = state.figure.layout.meta?.pick;
    if (!name || key === undefined || key === null) return;
    element.dispatchEvent(new CustomEvent("pdt-pick", { detail: { name, key: String(key) } }));
  });
}

// A figure follows its element's width: the window is resized, a sidebar opens, a phone is turned.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const state = drawn.get(target);
    if (target.clientWidth && target.clientWidth !== state.width) draw(target, state.figure);
  }
});

/** The figure that the page carries for an element. @returns {Figure|null} */
export function embedded(element) {
  const script = element.querySelector('script[type="application/json"]');
  return script ? JSON.parse(script.textContent) : null;
}

/** Call back once the element comes near the viewport. */
export function whenNear(element, callback) {
  const observer = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      callback();
    },
    { rootMargin: "400px" },
  );
  observer.observe(element);
}

new MutationObserver(() => {
  for (const [element, { figure }] of drawn) draw(element, figure);
}).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

for (const element of document.querySelectorAll("[data-figure]")) {
  if (element.closest("[data-explorer]")) continue;
  const figure = embedded(element);
  if (figure) whenNear(element, () => draw(element, figure));
}
