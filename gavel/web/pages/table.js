// @ts-check
// A table that holds only the rows in view, so that 10,000 jobs cost as much as fifty.

import { h, patch } from "./dom.js";

/** Rows above and below the view that are kept ready. */
const SPARE = 10;
/** How long the view has been at rest when its rows are put in order. */
const REST_MS = 500;

/**
 * @template T
 * @typedef {{
 *   head: string,
 *   cell: (row: T) => import("./dom.js").Child,
 *   class?: string,
 *   width?: string,
 *   narrow?: string,
 *   title?: (row: T) => string,
 *   optional?: boolean,
 * }} Column
 */

/**
 * Which rows to show: the first and, exclusively, the last.
 * @param {number} top  how far the view is scrolled
 * @param {number} height  the height of the view
 * @param {number} rowHeight
 * @param {number} count
 * @param {number} [spare]
 */
export function windowOf(top, height, rowHeight, count, spare = SPARE) {
  const visible = Math.ceil(height / rowHeight);
  const first = Math.max(0, Math.min(Math.floor(top / rowHeight), count - visible) - spare);
  return { first, last: Math.min(count, first + visible + 2 * spare + 1) };
}

/**
 * A row of the body. It shows one job after another, so that scrolling makes no elements.
 * @template T
 * @typedef {{key: string, row: T, index: number, node: HTMLElement, cells: HTMLElement[], texts: (string | undefined)[]}} Slot
 */

/**
 * A table of any length in a box that scrolls. All rows have the same height, and each has its place by its index.
 * @template T
 */
export class WindowedTable {
  /**
   * @param {string} label
   * @param {Column<T>[]} columns
   * @param {{key: (row: T) => string, rowHeight?: number, empty?: string, classOf?: (row: T) => string}} options
   */
  constructor(label, columns, options) {
    this.columns = columns;
    this.options = options;
    this.rowHeight = options.rowHeight ?? 32;
    /** @type {T[]} */
    this.rows = [];
    this.painting = false;
    this.ordering = 0;
    this.height = 0;
    /** @type {Map<string, Slot<T>>} */
    this.slots = new Map();
    this.body = h("tbody", { role: "rowgroup" });
    // Cells are laid out as a grid, so their roles are stated.
    this.table = h(
      "table",
      { class: "windowed", role: "table", "aria-label": label, style: tracks(columns) },
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row", "aria-rowindex": 1 },
          columns.map((column) => h("th", { scope: "col", role: "columnheader", class: column.class }, column.head)),
        ),
      ),
      this.body,
    );
    this.empty = h("p", { class: "empty", hidden: true });
    // A box that scrolls has to take the focus, so that the keys scroll it.
    this.node = h(
      "div",
      { class: "scroller", tabindex: "0", role: "region", "aria-label": `${label}, scrolls`, "data-keep": "" },
      this.table,
      this.empty,
    );
    this.node.addEventListener("scroll", () => this.soon(), { passive: true });
    this.sizes = new ResizeObserver(() => {
      this.height = this.node.clientHeight;
      this.soon();
    });
    this.sizes.observe(this.node);
  }

  /** @param {T[]} rows @param {string} [empty]  what to say if there are none */
  show(rows, empty) {
    this.rows = rows;
    this.empty.hidden = rows.length > 0;
    this.empty.textContent = empty ?? this.options.empty ?? "Nothing to list.";
    this.table.hidden = rows.length === 0;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.body.style.height = `${rows.length * this.rowHeight}px`;
    this.paint(true);
    this.order();
  }

  soon() {
    if (this.painting) return;
    this.painting = true;
    requestAnimationFrame(() => {
      this.painting = false;
      this.paint();
    });
  }

  /** Show the rows in view. @param {boolean} [again]  also write those again that are there already */
  paint(again = false) {
    const { first, last } = windowOf(this.node.scrollTop, this.height || 800, this.rowHeight, this.rows.length);
    const wanted = this.rows.slice(first, last).map((row) => ({ row, key: this.options.key(row) }));
    const keys = new Set(wanted.map(({ key }) => key));
    const spare = [...this.slots.values()].filter((slot) => !keys.has(slot.key));
    // Elements that are about to show other jobs must not keep the focus: a key would concern another job.
    if (spare.some((slot) => slot.node.contains(document.activeElement))) this.node.focus({ preventScroll: true });
    wanted.forEach(({ row, key }, at) => {
      const known = this.slots.get(key);
      const slot = known ?? this.reused(spare.pop()) ?? this.made();
      if (!known || again) this.write(slot, key, row);
      this.place(slot, first + at);
    });
    for (const slot of spare) {
      this.slots.delete(slot.key);
      slot.node.remove();
    }
    // Where elements stand among their siblings matters to the keyboard, and not while the view moves.
    clearTimeout(this.ordering);
    this.ordering = setTimeout(() => this.order(), REST_MS);
  }

  /** @param {Slot<T> | undefined} slot */
  reused(slot) {
    if (slot) this.slots.delete(slot.key);
    return slot;
  }

  /** @returns {Slot<T>} */
  made() {
    const cells = this.columns.map((column) => h("td", { role: "cell", class: column.class }));
    const node = h("tr", { role: "row" }, cells);
    this.body.append(node);
    return { key: "", row: /** @type {any} */ (null), index: -1, node, cells, texts: [] };
  }

  /** @param {Slot<T>} slot @param {string} key @param {T} row */
  write(slot, key, row) {
    [slot.key, slot.row] = [key, row];
    this.slots.set(key, slot);
    const kind = this.options.classOf?.(row) ?? "";
    if (slot.node.className !== kind) slot.node.className = kind;
    this.columns.forEach((column, at) => {
      const cell = slot.cells[at];
      const content = column.cell(row);
      if (typeof content === "string" || typeof content === "number") {
        const text = String(content);
        if (slot.texts[at] === text) return;
        if (slot.texts[at]) /** @type {Text} */ (cell.firstChild).data = text;
        else cell.textContent = text;
        slot.texts[at] = text;
      } else {
        if (slot.texts[at]) cell.textContent = "";
        slot.texts[at] = undefined;
        patch(cell, content);
      }
      if (column.title && cell.title !== column.title(row)) cell.title = column.title(row);
    });
  }

  /** @param {Slot<T>} slot @param {number} index */
  place(slot, index) {
    if (slot.index === index) return;
    slot.index = index;
    slot.node.style.top = `${index * this.rowHeight}px`;
    slot.node.setAttribute("aria-rowindex", String(index + 2));
  }

  /** Bring the elements into the order of their rows. Few move, and never the one that has the focus. */
  order() {
    clearTimeout(this.ordering);
    const slots = [...this.slots.values()].sort((a, b) => a.index - b.index);
    const places = new Map(slots.map(({ node }, at) => [/** @type {Element} */ (node), at]));
    const kept = stretch(
      [...this.body.children].map((node) => places.get(node) ?? 0),
      slots.findIndex(({ node }) => node.contains(document.activeElement)),
    );
    slots.reduceRight((next, { node }, at) => {
      if (!kept.has(at)) this.body.insertBefore(node, next);
      return node;
    }, /** @type {Node | null} */ (null));
  }

  stop() {
    clearTimeout(this.ordering);
    this.sizes.disconnect();
  }
}

/**
 * The longest stretch of ascending numbers or, if there is one to keep, that in which it is.
 * @param {number[]} numbers @param {number} keep  one of them, or -1
 */
export function stretch(numbers, keep) {
  let best = /** @type {number[]} */ ([]);
  for (let from = 0, to = 1; from < numbers.length; from = to, to++) {
    while (to < numbers.length && numbers[to] > numbers[to - 1]) to++;
    const part = numbers.slice(from, to);
    if (part.includes(keep)) return new Set(part);
    if (part.length > best.length) best = part;
  }
  return new Set(best);
}

/** The widths of all columns, and of those that small screens show. @param {Column<any>[]} columns */
function tracks(columns) {
  const standard = "minmax(0, 1fr)";
  const few = columns.filter((column) => !column.class?.includes("wide-only"));
  return {
    "--columns": columns.map((column) => column.width ?? standard).join(" "),
    "--few-columns": few.map((column) => column.narrow ?? column.width ?? standard).join(" "),
  };
}

/**
 * A plain table, for lists that are short.
 * @template T
 * @param {string} label
 * @param {Column<T>[]} columns
 * @param {T[]} rows
 * @param {{key?: (row: T) => string, empty?: string, classOf?: (row: T) => string}} [options]
 */
export function shortTable(label, columns, rows, options = {}) {
  if (rows.length === 0) return h("p", { class: "empty" }, options.empty ?? "Nothing to list.");
  // An optional column that says nothing in any row is left out.
  const shown = columns.filter((column) => !column.optional || rows.some((row) => column.cell(row)));
  return h(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": label },
    h(
      "table",
      { "aria-label": label },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          shown.map((column) => h("th", { scope: "col", class: column.class }, column.head)),
        ),
      ),
      h(
        "tbody",
        null,
        rows.map((row, index) =>
          h(
            "tr",
            { key: options.key?.(row) ?? `row ${index}`, class: options.classOf?.(row) },
            shown.map((column) =>
              h("td", { class: column.class, title: column.title?.(row) || null }, column.cell(row)),
            ),
          ),
        ),
      ),
    ),
  );
}
