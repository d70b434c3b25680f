// @ts-check
// Colours of data. The pure part turns figures into colours; `palette` reads the colours of the theme from style.css.

/** @typedef {[number, number, number]} Rgb */
/** @typedef {{ground: Rgb, ink: Rgb, muted: Rgb, line: Rgb, accent: Rgb, behind: Rgb, even: Rgb, ahead: Rgb, types: Rgb[]}} Palette */

/** How many colours there are for GPU types, and for jobs. */
export const COLORS = 8;
/** A ratio of 4, or of 1/4, has the full colour. */
const FULL_LOG2 = 2;
/** A cell with little due is faint, but can be seen. */
const FAINTEST = 0.3;

/** @param {string} text  such as #0b6bcb or rgb(11, 107, 203) @returns {Rgb} */
export function rgb(text) {
  const hex = /^#([0-9a-f]{6})$/i.exec(text.trim());
  if (hex) return /** @type {Rgb} */ ([0, 2, 4].map((at) => parseInt(hex[1].slice(at, at + 2), 16)));
  return /** @type {Rgb} */ ((text.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number));
}

/** @param {Rgb} color @param {number} [opacity] */
export const css = (color, opacity = 1) => `rgb(${color.map(Math.round).join(" ")} / ${opacity})`;

/** @param {Rgb} from @param {Rgb} to @param {number} part @returns {Rgb} */
export const mix = (from, to, part) =>
  /** @type {Rgb} */ (from.map((value, index) => value + (to[index] - value) * part));

/** The luminance of WCAG. @param {Rgb} color */
export function luminance(color) {
  const [r, g, b] = color.map((value) => (value <= 10.31 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** @param {Rgb} a @param {Rgb} b */
export function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

/**
 * Of two colours for text, the one that reads better on this ground.
 * @param {Rgb} ground @param {Rgb} one @param {Rgb} other
 */
export const readable = (ground, one, other) => (contrast(ground, one) >= contrast(ground, other) ? one : other);

/**
 * Where received ÷ due stands between -1 (a quarter or less), 0 (as due) and 1 (four times or more).
 * @param {number} due @param {number} received
 */
export function standing(due, received) {
  if (due <= 0) return received > 0 ? 1 : 0;
  if (received <= 0) return -1;
  return Math.max(-1, Math.min(1, Math.log2(received / due) / FULL_LOG2));
}

/**
 * The colour of received ÷ due: diverging, centred on 1.
 * @param {number} due @param {number} received @param {Palette} colors
 */
export function ratioColor(due, received, colors) {
  const at = standing(due, received);
  return at < 0 ? mix(colors.even, colors.behind, -at) : mix(colors.even, colors.ahead, at);
}

/**
 * How opaque a cell is: by its due, and by what it received where nothing was due.
 * @param {number} due @param {number} received @param {number} most
 */
export function opacity(due, received, most) {
  const size = due > 0 ? due : received / 2;
  if (size <= 0 || most <= 0) return 0;
  return FAINTEST + (1 - FAINTEST) * Math.sqrt(Math.min(1, size / most));
}

/**
 * The index of a type's colour: by its place among all types of the cluster, so that two types differ.
 * @param {string} type @param {string[]} types  sorted
 */
export const typeIndex = (type, types) => Math.max(0, types.indexOf(type)) % COLORS;

/**
 * The index of a job's colour: the same on all pages and in all sessions.
 * @param {string} job
 */
export function jobIndex(job) {
  // Jobs of one time have numbers that follow one another, and so do the jobs of an array. Of those, few are alike.
  const number = job.split("_").reduce((sum, part) => sum + Number.parseInt(part, 10), 0);
  return (number + 3 * Math.floor(number / COLORS)) % COLORS || 0;
}

/** The colours of the theme in force. @returns {Palette} */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const color = (/** @type {string} */ name) => rgb(style.getPropertyValue(`--${name}`));
  const types = Array.from({ length: COLORS }, (_, index) => color(`data-${index}`));
  return {
    ground: color("ground"),
    ink: color("ink"),
    muted: color("muted"),
    line: color("line"),
    accent: color("accent"),
    behind: color("behind"),
    even: color("even"),
    ahead: color("ahead"),
    types,
  };
}
