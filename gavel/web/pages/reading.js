// @ts-check
// What pages about figures share: they read again by themselves, and keep their choices in the address.

import { h } from "./dom.js";

/** @typedef {import("./app.js").Page} Page */
/** @typedef {import("./app.js").Context} Context */

/** How often figures are read again while they can be seen. */
const AGAIN_MS = 5000;

/**
 * A page that reads its figures again: every few seconds while it can be seen, when it is
 * shown again, after each round, and after the scheduler was away.
 * @param {Context} context
 * @param {string} title
 * @param {() => Promise<void>} load
 * @param {HTMLElement} node
 * @param {Partial<Page>} [extra]
 * @returns {Page}
 */
export function readAgain(context, title, load, node, extra = {}) {
  const { update, stop, ...rest } = extra;
  const timer = setInterval(
    () => !document.hidden && !context.live.state.staleSince && load(),
    AGAIN_MS,
  );
  load();
  return {
    node,
    title,
    ...rest,
    update(state, kinds, gone) {
      update?.(state, kinds, gone);
      if (kinds.has("round") || kinds.has("live") || kinds.has("shown")) load();
    },
    stop() {
      clearInterval(timer);
      stop?.();
    },
  };
}

/** What the address says. @param {string} name @param {string} standard */
export const inAddress = (name, standard) => new URLSearchParams(location.search).get(name) ?? standard;

/**
 * A group of buttons of which one is pressed.
 * @param {string} label @param {[string, string][]} options @param {string} chosen @param {(value: string) => void} choose
 */
export const choice = (label, options, chosen, choose) =>
  h(
    "div",
    { class: "choice", role: "group", "aria-label": label },
    options.map(([value, name]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, name),
    ),
  );
