// Step and play for a slider through the steps of a process.

const PERIOD_MS = 900;

/**
 * @param {HTMLElement} box the control's box
 * @param {import("./controls.js").Controls} controls
 */
export function player(box, controls) {
  const name = box.dataset.for;
  const play = box.querySelector("[data-play]");
  const words = { play: play.textContent, pause: play.dataset.pause };
  let timer = 0;

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = words.play;
    play.setAttribute("aria-pressed", "false");
  }

  function start() {
    const input = box.querySelector("input");
    if (input.value === input.max) controls.step(name, -Number(input.max));
    play.textContent = words.pause;
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(() => controls.step(name, 1) || stop(), PERIOD_MS);
  }

  play.addEventListener("click", () => (timer ? stop() : start()));
  for (const button of box.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => {
      stop();
      controls.step(name, Number(button.dataset.step));
    });
  }
}
