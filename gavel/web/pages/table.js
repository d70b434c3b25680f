// @ts-check
// A table that holds only the rows in view, so that 10,000 jobs cost as much as fifty.

import { h, patch } from "./dom.js";

/** Rows above and below the view that are kept ready. */
const SPARE = 10;

/**
 * @template T
 * @typedef {{
 *   head: string,
 *   cell: (row: T) => import("./dom.js").Child,
 *   class?: string,
 *   width?: string,
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
 * A table of any length in a box that scrolls.
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
    /** @type {Map<string, Element>} */
    this.made = new Map();
    this.body = h("tbody");
    this.table = h(
      "table",
      { class: "windowed", "aria-label": label },
      h(
        "colgroup",
        null,
        columns.map((column) =>
          h("col", { class: column.class, style: column.width ? { width: column.width } : null }),
        ),
      ),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          columns.map((column) => h("th", { scope: "col", class: column.class }, column.head)),
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
    this.sizes = new ResizeObserver(() => this.soon());
    this.sizes.observe(this.node);
  }

  /** @param {T[]} rows @param {string} [empty]  what to say if there are none */
  show(rows, empty) {
    this.rows = rows;
    this.empty.hidden = rows.length > 0;
    this.empty.textContent = empty ?? this.options.empty ?? "Nothing to list.";
    this.table.hidden = rows.length === 0;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.made.clear();
    this.paint();
  }

  soon() {
    if (this.painting) return;
    this.painting = true;
    requestAnimationFrame(() => {
      this.painting = false;
      this.paint();
    });
  }

  paint() {
    const { first, last } = windowOf(
      this.node.scrollTop,
      this.node.clientHeight || 800,
      this.rowHeight,
      this.rows.length,
    );
    const rows = this.rows
      .slice(first, last)
      .map((row, index) => this.made.get(`row ${this.options.key(row)}`) ?? this.row(row, first + index));
    patch(
      this.body,
      spacer("above", first * this.rowHeight),
      rows,
      spacer("below", (this.rows.length - last) * this.rowHeight),
    );
    // While the view is scrolled, rows that stay in it are not made again.
    this.made = new Map(
      [...this.body.children].map((row) => [/** @type {HTMLElement} */ (row).dataset.key ?? "", row]),
    );
    this.made.delete("above");
    this.made.delete("below");
  }

  /** @param {T} row @param {number} index */
  row(row, index) {
    return h(
      "tr",
      { key: `row ${this.options.key(row)}`, "aria-rowindex": index + 2, class: this.options.classOf?.(row) },
      this.columns.map((column) =>
        h("td", { class: column.class, title: column.title?.(row) || null }, column.cell(row)),
      ),
    );
  }

  stop() {
    this.sizes.disconnect();
  }
}

/** @param {string} key @param {number} height */
const spacer = (key, height) =>
  height > 0 &&
  h("tr", { key, class: "spacer", "aria-hidden": "true" }, h("td", { style: { height: `${height}px` } }));

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
