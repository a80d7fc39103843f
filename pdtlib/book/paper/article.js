// One page's article for paper: what moves stands still, mathematics is MathML or TeX, links lead inside the book.
// Evaluated in the page; the answer is {title, xhtml, images: [{name, svg, alt}]}.

async ({ name, names, mathml }) => {
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const article = document.querySelector("article.bd-article");
  const figures = [...article.querySelectorAll("[data-figure], [data-panel-figure]")].filter(
    (figure) => !figure.closest("[hidden]") && figure.querySelector("script"),
  );
  for (const figure of figures) {
    figure.scrollIntoView();
    while (!figure.querySelector(".main-svg")) await sleep(50);
  }
  const drawings = [];
  for (const figure of figures) {
    const { width, height } = figure.getBoundingClientRect();
    const url = await window.Plotly.toImage(figure, { format: "svg", width: Math.round(width), height: Math.round(height) });
    drawings.push({ svg: decodeURIComponent(url.slice(url.indexOf(",") + 1)), alt: figure.getAttribute("aria-label") ?? "" });
  }
  const formulas = [...(window.MathJax?.startup?.document?.math ?? [])].map((item) => {
    item.typesetRoot.dataset.formula = "";
    return { root: item.typesetRoot, tex: item.math, display: item.display };
  });
  const live = {
    figures,
    formulas: formulas.map(({ root }) => root),
    swatches: [...article.querySelectorAll(".pdt-swatch")].map((swatch) => getComputedStyle(swatch).backgroundColor),
  };

  // From here on a copy is changed; marks say which of its elements are which.
  live.figures.forEach((figure, index) => (figure.dataset.drawing = index));
  live.formulas.forEach((formula, index) => (formula.dataset.formula = index));
  const copy = article.cloneNode(true);
  const all = (selector) => [...copy.querySelectorAll(selector)];
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };

  for (const figure of all("[data-drawing]")) {
    const index = Number(figure.dataset.drawing);
    const image = make("img", { src: `${name}-${index}.svg`, alt: drawings[index].alt, class: "drawing" });
    figure.replaceWith(image);
  }
  all(".pdt-swatch").forEach((swatch, index) => swatch.setAttribute("style", `background:${live.swatches[index]}`));
  for (const formula of all("[data-formula]")) {
    const { tex, display } = formulas[Number(formula.dataset.formula)];
    if (!mathml) {
      formula.replaceWith(display ? `\\[${tex}\\]` : `\\(${tex}\\)`);
      continue;
    }
    const text = window.MathJax.tex2mml(tex, { display });
    formula.replaceWith(document.importNode(new DOMParser().parseFromString(text, "application/xml").documentElement, true));
  }

  const answers = all(".pdt-prediction-answer p").map((answer) => make("li", {}, ...answer.childNodes));
  if (answers.length) {
    copy.append(make("h2", {}, document.body.dataset.answers ?? "Answers to the questions"), make("ol", {}, ...answers));
  }
  // An exercise's starter as the page was written: the editor shows only the lines that are in sight.
  const written = new DOMParser().parseFromString(await (await fetch(location.pathname)).text(), "text/html");
  for (const exercise of all("[data-exercise]")) {
    const starter = written.getElementById(exercise.id).querySelector("[data-editor] pre");
    const code = starter ? [make("pre", {}, starter.textContent)] : [];
    exercise.querySelector(".pdt-exercise-work")?.replaceWith(...code);
  }
  const dropped = [
    "script, style, noscript, template, button, input, select, textarea, datalist, iframe, link, .headerlink",
    "[hidden], .pdt-controls, .pdt-tools, .pdt-offline, .pdt-alternative, .pdt-compare, .pdt-problem, .pdt-error",
    ".pdt-prediction-answer, .pdt-prediction-row, .pdt-prediction-result, .pdt-exercise-fold, .pdt-exercise-solved",
    ".pdt-downloads, mjx-assistive-mml, details.above-input, .expanded, .prev-next-footer, a[href^='data:']",
  ];
  for (const node of all(dropped.join(", "))) node.remove();

  for (const link of all("a[href]")) {
    const target = new URL(link.getAttribute("href"), location.href);
    if (target.origin !== location.origin) continue;
    const page = target.pathname.replace(/^\//, "");
    if (names[page]) link.setAttribute("href", `#${names[page]}${target.hash ? `--${target.hash.slice(1)}` : ""}`);
    else link.replaceWith(...link.childNodes);
  }
  for (const node of all("[id]")) node.id = `${name}--${node.id}`;

  // Plain elements alone: the rest is a box.
  const plain = new Set(
    "a abbr b blockquote br caption code col colgroup dd div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre q s section small span strong sub sup table tbody td tfoot th thead tr ul var".split(" "),
  );
  const kept = new Set(["id", "class", "href", "src", "alt", "colspan", "rowspan", "scope", "start", "style"]);
  const boxes = { details: "div", summary: "div", article: "div", form: "div", label: "p", header: "div", aside: "div", nav: "div" };
  const walk = (node) => {
    for (const child of [...node.children]) walk(child);
    if (node.namespaceURI !== "http://www.w3.org/1999/xhtml") return;
    for (const { name: key } of [...node.attributes]) if (!kept.has(key)) node.removeAttribute(key);
    if (!node.classList.contains("pdt-swatch")) node.removeAttribute("style");
    const tag = node.localName;
    if (plain.has(tag)) return;
    const inline = node.parentNode?.nodeType === 1 && /^(p|span|a|li|td|th|dt|dd|h\d|em|strong|code|label|summary)$/.test(node.parentNode.localName);
    const block = node.querySelector("div, p, ul, ol, pre, table, section, h2, h3");
    const box = make(boxes[tag] ?? (inline && !block ? "span" : "div"), {}, ...node.childNodes);
    if (node.id) box.id = node.id;
    box.className = node.className;
    if (!box.className) box.removeAttribute("class");
    node.replaceWith(box);
  };
  const body = make("div", { id: name, class: "chapter" }, ...copy.childNodes);
  for (const child of [...body.children]) walk(child);
  const title = body.querySelector("h1")?.textContent.trim() ?? name;
  return {
    title,
    xhtml: new XMLSerializer().serializeToString(body),
    images: drawings.map(({ svg, alt }, index) => ({ name: `${name}-${index}.svg`, svg, alt })),
  };
};
