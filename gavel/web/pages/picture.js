// @ts-check
// Pictures on a canvas: sized to their box, sharp on every screen, with a note under the pointer. Each has a twin, a table.

import { css, mix, palette, readable } from "./colors.js";
import { h } from "./dom.js";
import { clock } from "./values.js";

/** @typedef {{g: CanvasRenderingContext2D, width: number, height: number, colors: import("./colors.js").Palette}} Pen */
/** @typedef {{text: string, href?: string}} Spot */

export class Picture {
  /**
   * @param {string} label  what the picture shows, for those who cannot see it
   * @param {(pen: Pen) => void} draw
   * @param {(x: number, y: number) => Spot | null} [spotAt]
   * @param {(path: string) => void} [go]
   */
  constructor(label, draw, spotAt, go) {
    this.draw = draw;
    this.canvas = h("canvas", { role: "img", "aria-label": label });
    this.tip = h("div", { class: "tip", hidden: true, role: "presentation" });
    this.node = h("div", { class: "canvas", "data-keep": "" }, this.canvas, this.tip);
    this.height = 0;
    this.sizes = new ResizeObserver(() => this.paint());
    this.sizes.observe(this.node);
    if (spotAt) {
      this.canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) =>
        this.point(spotAt(event.offsetX, event.offsetY), event),
      );
      this.canvas.addEventListener("pointerleave", () => {
        this.tip.hidden = true;
      });
      this.canvas.addEventListener("click", (/** @type {PointerEvent} */ event) => {
        const spot = spotAt(event.offsetX, event.offsetY);
        if (spot?.href) go?.(spot.href);
      });
    }
  }

  /** @param {number} height */
  show(height) {
    this.height = height;
    this.paint();
  }

  paint() {
    const width = this.node.clientWidth;
    if (!width || !this.height) return;
    const ratio = devicePixelRatio || 1;
    const [w, t] = [Math.round(width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== t) {
      this.canvas.width = w;
      this.canvas.height = t;
      this.canvas.style.height = `${this.height}px`;
    }
    const g = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, this.height);
    g.font = "12px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
    g.textBaseline = "middle";
    this.draw({ g, width, height: this.height, colors: palette() });
  }

  /** @param {Spot | null} spot @param {PointerEvent} event */
  point(spot, event) {
    this.tip.hidden = !spot;
    this.canvas.style.cursor = spot?.href ? "pointer" : "";
    if (!spot) return;
    if (this.tip.textContent !== spot.text) this.tip.textContent = spot.text;
    const right = event.offsetX + 16 + this.tip.offsetWidth > this.node.clientWidth;
    this.tip.style.left = `${Math.max(0, right ? event.offsetX - 16 - this.tip.offsetWidth : event.offsetX + 16)}px`;
    this.tip.style.top = `${event.offsetY + 16}px`;
  }

  stop() {
    this.sizes.disconnect();
  }
}

/**
 * Text that ends with … where it does not fit.
 * @param {CanvasRenderingContext2D} g @param {string} text @param {number} width
 */
export function fitted(g, text, width) {
  if (width < 12) return "";
  if (g.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : "";
}

/**
 * A button pair that turns a picture into its table and back.
 * @param {string} view @param {(view: string) => void} choose
 */
export function viewChoice(view, choose) {
  return h(
    "div",
    { class: "choice", role: "group", "aria-label": "How to show it" },
    [
      ["picture", "Picture"],
      ["table", "Table"],
    ].map(([name, label]) =>
      h("button", { type: "button", "aria-pressed": String(view === name), onclick: () => choose(name) }, label),
    ),
  );
}

/**
 * @typedef {{start: number, end: number, label: string, color: number, tip: string, href?: string, faint?: boolean, open?: boolean}} Block
 * @typedef {{name: string, blocks: Block[], notes?: {at: number, until: number, text: string}[]}} Lane
 */

const LANE = 28;
const AXIS = 24;

/** Lanes of time: a row for each GPU, with a block for each turn on it. */
export class Lanes {
  /**
   * @param {string} label @param {(path: string) => void} go
   * @param {(at: number) => string | undefined} [hrefAt]  where a click at a time leads; it goes before the blocks
   */
  constructor(label, go, hrefAt) {
    this.hrefAt = hrefAt;
    /** @type {[number, number] | null} */
    this.chosen = null;
    /** @type {Lane[]} */
    this.lanes = [];
    this.from = 0;
    this.to = 1;
    this.names = 0;
    this.width = 1;
    /** @type {number[]} */
    this.marks = [];
    this.picture = new Picture(
      label,
      (pen) => this.draw(pen),
      (x, y) => this.spotAt(x, y),
      go,
    );
    this.node = this.picture.node;
  }

  /**
   * @param {Lane[]} lanes @param {number} from @param {number} to @param {number[]} [marks]
   * @param {[number, number] | null} [chosen]  a time to mark
   */
  show(lanes, from, to, marks = [], chosen = null) {
    [this.lanes, this.from, this.to, this.marks, this.chosen] = [lanes, from, Math.max(to, from + 1), marks, chosen];
    this.picture.show(lanes.length * LANE + AXIS);
  }

  /** @param {number} at */
  x(at) {
    return this.names + ((at - this.from) / (this.to - this.from)) * (this.width - this.names);
  }

  /** @param {Pen} pen */
  draw({ g, width, colors }) {
    this.width = width;
    this.names = Math.min(width / 3, 16 + Math.max(40, ...this.lanes.map((lane) => g.measureText(lane.name).width)));
    if (this.chosen) {
      const [from, until] = this.chosen.map((at) => Math.max(this.names, Math.min(this.width, this.x(at))));
      g.fillStyle = css(colors.accent, 0.16);
      g.fillRect(from, 0, until - from, this.lanes.length * LANE);
    }
    g.fillStyle = css(colors.muted);
    for (const [at, label] of ticks(this.from, this.to, Math.max(2, Math.floor((width - this.names) / 120)))) {
      const x = Math.round(this.x(at)) + 0.5;
      g.strokeStyle = css(colors.line);
      g.beginPath();
      g.moveTo(x, 0);
      g.lineTo(x, this.lanes.length * LANE);
      g.stroke();
      g.textAlign = x + 60 > width ? "right" : "left";
      g.fillText(label, x + 60 > width ? width : x, this.lanes.length * LANE + AXIS / 2 + 2);
    }
    g.textAlign = "left";
    for (const mark of this.marks) {
      const x = Math.round(this.x(mark)) + 0.5;
      g.strokeStyle = css(colors.muted, 0.5);
      g.beginPath();
      g.moveTo(x, 0);
      g.lineTo(x, this.lanes.length * LANE);
      g.stroke();
    }
    this.lanes.forEach((lane, index) => this.drawLane(g, colors, lane, index * LANE));
  }

  /** @param {CanvasRenderingContext2D} g @param {import("./colors.js").Palette} colors @param {Lane} lane @param {number} top */
  drawLane(g, colors, lane, top) {
    const middle = top + LANE / 2;
    g.fillStyle = css(colors.muted);
    g.fillText(fitted(g, lane.name, this.names - 8), 0, middle);
    g.strokeStyle = css(colors.line);
    g.beginPath();
    g.moveTo(0, top + LANE - 0.5);
    g.lineTo(this.width, top + LANE - 0.5);
    g.stroke();
    for (const note of lane.notes ?? []) {
      const [from, until] = [this.x(Math.max(note.at, this.from)) + 6, this.x(Math.min(note.until, this.to)) - 6];
      g.fillStyle = css(colors.muted);
      g.fillText(fitted(g, note.text, until - from), from, middle);
    }
    for (const block of lane.blocks) {
      const [from, until] = [this.x(Math.max(block.start, this.from)), this.x(Math.min(block.end, this.to))];
      if (until < this.names || from > this.width) continue;
      // Many colours beside each other are calmer when they are lighter.
      const color = mix(colors.ground, colors.types[block.color], 0.8);
      const size = Math.max(2, until - from - 1);
      g.globalAlpha = block.faint ? 0.35 : 1;
      g.fillStyle = css(color);
      g.beginPath();
      g.roundRect(from, top + 4, size, LANE - 8, block.open ? [2, 0, 0, 2] : 2);
      g.fill();
      g.globalAlpha = 1;
      g.fillStyle = css(readable(color, colors.ink, colors.ground));
      g.fillText(fitted(g, block.label, size - 12), from + 6, middle);
    }
  }

  /** @param {number} x @param {number} y @returns {Spot | null} */
  spotAt(x, y) {
    const lane = this.lanes[Math.floor(y / LANE)];
    if (!lane || x < this.names) return null;
    const at = this.from + ((x - this.names) / (this.width - this.names)) * (this.to - this.from);
    const block = lane.blocks.find((one) => one.start <= at && at <= one.end);
    const note = lane.notes?.find((one) => one.at <= at && at <= one.until);
    const href = this.hrefAt?.(at);
    if (block) return { text: block.tip, href: href ?? block.href };
    return note ? { text: note.text, href } : href ? { text: clock(at), href } : null;
  }

  stop() {
    this.picture.stop();
  }
}

const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000,
];

/**
 * Round times between two times, with their labels.
 * @param {number} from @param {number} to @param {number} count  how many fit
 * @returns {[number, string][]}
 */
export function ticks(from, to, count) {
  const step = STEPS.find((one) => (to - from) / one <= count) ?? 7776000;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const times = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) times.push(at);
  return times.map((at) => [
    at,
    step >= 86400
      ? new Date(at * 1000).toLocaleDateString("en-CA").slice(5)
      : step >= 60
        ? clock(at).slice(-8, -3)
        : clock(at).slice(-8),
  ]);
}
