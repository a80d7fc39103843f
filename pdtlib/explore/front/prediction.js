// Compares the reader's number with the value that the page's build computed.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** "1,120", "1 120", "4.2e23", "4.2 × 10^23" and "4.2x10²³" are numbers; anything else is NaN. */
export function parseNumber(text) {
  const plain = text
    .trim()
    .replace(/⁻/g, "-")
    .replace(/[⁰¹²³⁴⁵⁶⁷⁸⁹]/g, (digit) => String(SUPERSCRIPTS.indexOf(digit)))
    .replace(/[\s,_  ]/g, "")
    .replace(/(?:[x×*·])10(?:\^|\*\*)?([+-]?\d+)$/i, "e$1")
    .replace(/^10\^([+-]?\d+)$/, "1e$1");
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : NaN;
}

/** Four significant digits, thousands separated, like the Python side's `readable`. */
export function readable(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e15 || size < 1e-3)) {
    const [mantissa, exponent] = value.toExponential(3).split("e");
    return `${Number(mantissa)} × 10^${Number(exponent)}`;
  }
  const decimals = size === 0 ? 0 : Math.max(0, 3 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en", { maximumFractionDigits: decimals });
}

/** One sentence on a guess: {kind: "invalid" | "right" | "slip" | "off", text}. */
export function judge(prediction, text) {
  const { value, unit, tolerance, explanation, slips = [] } = prediction;
  const guess = parseNumber(text);
  if (!Number.isFinite(guess)) {
    return { kind: "invalid", text: "Type one number, for example 42, 1,500 or 4.2e23." };
  }
  const answer = `The library computes ${readable(value)} ${unit}.`;
  const error = guess / value - 1;
  if (Math.abs(error) <= tolerance) {
    return { kind: "right", text: `Right. ${answer} ${explanation}` };
  }
  const slip = slips.find((candidate) => Math.abs(guess / candidate.value - 1) <= tolerance);
  if (slip) {
    return { kind: "slip", text: `Not quite: ${slip.text}. ${answer} ${explanation}` };
  }
  const ratio = guess / value;
  const distance =
    ratio >= 2 ? `${readable(ratio)} times too high`
    : ratio > 0 && ratio <= 0.5 ? `${readable(1 / ratio)} times too low`
    : `${Math.abs(error * 100).toFixed(0)} % too ${error > 0 ? "high" : "low"}`;
  return { kind: "off", text: `You are ${distance}. ${answer} ${explanation}` };
}

class PredictionElement extends HTMLElement {
  connectedCallback() {
    const form = this.querySelector("form");
    const result = this.querySelector(".pdt-prediction-result");
    const prediction = JSON.parse(this.dataset.prediction);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const verdict = judge(prediction, form.elements.guess.value);
      this.dataset.verdict = verdict.kind;
      form.elements.guess.setAttribute("aria-invalid", String(verdict.kind === "invalid"));
      result.textContent = verdict.text;
    });
  }
}

if (!customElements.get("pdt-prediction")) {
  customElements.define("pdt-prediction", PredictionElement);
}
