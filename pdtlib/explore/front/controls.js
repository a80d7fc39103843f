// The controls of one explorer: reading and setting them as keys, saying when one changes, showing errors beside them.

/** @typedef {Record<string, string>} State keys by control name */

export class Controls {
  /**
   * @param {HTMLFormElement} form
   * @param {(name: string) => void} onChange called with the control's name after each change
   */
  constructor(form, onChange) {
    this.form = form;
    this.onChange = onChange;
    /** @type {Map<string, HTMLElement>} */
    this.boxes = new Map([...form.querySelectorAll("[data-for]")].map((box) => [box.dataset.for, box]));
    this.limits = {};
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => this.#changed(event.target, false));
    form.addEventListener("change", (event) => this.#changed(event.target, true));
    this.last = this.state();
  }

  /** The control's inputs: one, or the radio buttons of a choice. */
  #inputs(name) {
    return [...this.boxes.get(name).querySelectorAll("[data-control]")];
  }

  #changed(target, committed) {
    const name = target.dataset?.control;
    if (!name || (target.type === "text" && !committed)) return; // what is typed counts once it is typed to the end
    this.#refresh();
    if (this.get(name) === this.last[name]) return;
    this.last = this.state();
    this.onChange(name);
  }

  /** @param {string} name @returns {string} key */
  get(name) {
    const inputs = this.#inputs(name);
    const [input] = inputs;
    if (input.type === "radio") return inputs.find((radio) => radio.checked)?.value ?? "";
    if (input.type === "checkbox") return input.checked ? "on" : "off";
    if (input.type === "range") return JSON.parse(input.dataset.keys)[Number(input.value)];
    return input.value.trim();
  }

  /** Whether the control can take the key at all. */
  accepts(name, key) {
    const box = this.boxes.get(name);
    if (!box) return false;
    const [input, ...others] = this.#inputs(name);
    if (input.type === "radio") return [input, ...others].some((radio) => radio.value === key);
    if (input.type === "checkbox") return key === "on" || key === "off";
    if (input.type === "range") return JSON.parse(input.dataset.keys).includes(key);
    if (input.tagName === "SELECT") return [...input.options].some((option) => option.value === key);
    return true;
  }

  #set(name, key) {
    const inputs = this.#inputs(name);
    const [input] = inputs;
    if (input.type === "radio") for (const radio of inputs) radio.checked = radio.value === key;
    else if (input.type === "checkbox") input.checked = key === "on";
    else if (input.type === "range") {
      const keys = JSON.parse(input.dataset.keys);
      input.max = String(keys.length - 1); // a limit is set again by the view
      input.value = String(keys.indexOf(key));
    }
    else input.value = key;
  }

  /** @returns {State} */
  state() {
    return Object.fromEntries([...this.boxes.keys()].map((name) => [name, this.get(name)]));
  }

  /** The state that the page was written with. @returns {State} */
  base() {
    const bases = [...this.boxes].map(([name, box]) => [name, box.querySelector("[data-base]").dataset.base]);
    return Object.fromEntries(bases);
  }

  /** Set controls without reporting a change; keys that a control cannot take are left out. @param {State} state */
  assign(state) {
    for (const [name, key] of Object.entries(state)) if (this.accepts(name, key)) this.#set(name, key);
    this.#refresh();
    this.last = this.state();
  }

  /** Set one control, as the reader would. */
  choose(name, key) {
    if (!this.accepts(name, key) || this.get(name) === key) return;
    this.#set(name, key);
    this.#refresh();
    this.last = this.state();
    this.onChange(name);
  }

  /** Move a slider by steps. @returns {boolean} whether it moved */
  step(name, steps) {
    const [input] = this.#inputs(name);
    const before = input.value;
    input.value = String(Math.min(Number(input.value) + steps, Number(input.max)));
    if (input.value === before) return false;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    return true;
  }

  /** Shorten sliders to the number of options that apply. @param {Record<string, number>} limits */
  limit(limits) {
    for (const [name, count] of Object.entries(limits)) this.#inputs(name)[0].max = String(count - 1);
    this.#refresh();
    this.last = this.state();
  }

  /** Texts beside sliders, and which controls apply. */
  #refresh() {
    for (const [name, box] of this.boxes) {
      const [input] = this.#inputs(name);
      if (input.type === "range") {
        const text = JSON.parse(input.dataset.texts)[Number(input.value)];
        input.setAttribute("aria-valuetext", text);
        box.querySelector("[data-output]").textContent = text;
        const share = (Number(input.value) - Number(input.min)) / Math.max(1, Number(input.max) - Number(input.min));
        input.style.setProperty("--pdt-share", `${share * 100}%`);
      }
      if (box.dataset.when) box.hidden = !JSON.parse(box.dataset.whenKeys).includes(this.get(box.dataset.when));
    }
  }

  /** Show a message beside a control. @returns {boolean} whether there is a visible control of that name */
  complain(name, message) {
    const box = this.boxes.get(name);
    if (!box || box.hidden) return false;
    const place = box.querySelector("[data-error-for]");
    place.textContent = message;
    place.hidden = false;
    for (const input of this.#inputs(name)) input.setAttribute("aria-invalid", "true");
    return true;
  }

  /** Take back every message. */
  settle() {
    for (const [name, box] of this.boxes) {
      box.querySelector("[data-error-for]").hidden = true;
      for (const input of this.#inputs(name)) input.removeAttribute("aria-invalid");
    }
  }
}
