// @ts-check
// The matrix of jobs and GPU types: what each was due, what it received, and where it runs now.

import { css, mix, opacity, ratioColor, readable, typeIndex } from "./colors.js";
import { h, jobPath, link, patch } from "./dom.js";
import { Picture } from "./picture.js";
import { shortTable } from "./table.js";
import { countOf, gpuHours, number, plain } from "./values.js";

const ROW = 24;
const HEADS = 64;
const CELL_MAX = 192;
/** Beyond this many jobs, the rows of tenants stand for those of their jobs. */
export const FOLD = 200;

/**
 * @typedef {{worker_type: string, due_s: number, received_s: number, gpus: number}} Cell
 * @typedef {{job: string, name: string, tenant: string, jobs: number, cells: Cell[]}} MatrixRow
 * @typedef {MatrixRow & {group: boolean, open: boolean, byType: Map<string, Cell>}} Line
 */

/** How far a row is behind what it was due, in GPU seconds. @param {MatrixRow} row */
export const gap = (row) => row.cells.reduce((sum, cell) => sum + cell.due_s - cell.received_s, 0);

/**
 * The lines of the matrix: jobs by gap, the furthest behind first, below the row of their tenant. With a single tenant,
 * its row would say the same as the whole, and is left out.
 * @param {MatrixRow[]} tenants @param {MatrixRow[]} jobs @param {(tenant: string) => boolean} isOpen
 * @returns {Line[]}
 */
export function linesOf(tenants, jobs, isOpen) {
  const line = (/** @type {MatrixRow} */ row, group = false, open = false) => ({
    ...row,
    group,
    open,
    byType: new Map(row.cells.map((cell) => [cell.worker_type, cell])),
  });
  const byGap = (/** @type {MatrixRow} */ a, /** @type {MatrixRow} */ b) =>
    gap(b) - gap(a) || a.job.localeCompare(b.job, "en", { numeric: true });
  if (tenants.length <= 1) return [...jobs].sort(byGap).map((row) => line(row));
  return [...tenants].sort(byGap).flatMap((tenant) => {
    const open = isOpen(tenant.tenant);
    const below = open ? jobs.filter((row) => row.tenant === tenant.tenant).sort(byGap) : [];
    return [line(tenant, true, open), ...below.map((row) => line(row))];
  });
}

/** The ratio as a cell shows it. @param {Cell | undefined} cell */
export function ratioText(cell) {
  if (!cell || (cell.due_s <= 0 && cell.received_s <= 0)) return "";
  if (cell.due_s <= 0) return `+${gpuHours(cell.received_s)}`;
  const ratio = cell.received_s / cell.due_s;
  if (ratio === 0) return "0×";
  return ratio >= 10 ? "≥ 10×" : `${ratio.toFixed(ratio < 0.995 ? 2 : 1)}×`;
}

export class Matrix {
  /** @param {import("./app.js").Context} context @param {(tenant: string) => void} turn  open or close a tenant */
  constructor(context, turn) {
    this.context = context;
    this.turn = turn;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {string[]} */
    this.types = [];
    /** @type {Record<string, number>} */
    this.prices = {};
    this.picture = new Picture(
      "Matrix of jobs and GPU types. The table beside it has the same figures.",
      (pen) => this.draw(pen),
      (x, y) => this.spotAt(x, y),
      context.go,
    );
    this.names = h("div", { class: "rows" });
    this.node = h("div", { class: "matrix" }, this.names, this.picture.node);
  }

  /** @param {Line[]} lines @param {string[]} types @param {Record<string, number>} prices */
  show(lines, types, prices) {
    [this.lines, this.types, this.prices] = [lines, types, prices];
    const grouped = lines.some((line) => line.group);
    patch(
      this.names,
      h("div", { class: "heads", key: "heads" }),
      lines.map((line) =>
        line.group
          ? h(
              "div",
              { key: `group ${line.tenant}`, class: "group" },
              h(
                "button",
                { type: "button", "aria-expanded": String(line.open), onclick: () => this.turn(line.tenant) },
                line.open ? "▾ " : "▸ ",
                plain(line.tenant, 40) || "default",
              ),
              h("span", { class: "small muted wide-only" }, countOf(line.jobs, "job")),
            )
          : h(
              "div",
              { key: `job ${line.job}`, style: grouped ? { "padding-left": "16px" } : null },
              h("a", { href: jobPath(line.job), class: "plain" }, plain(line.name, 40) || `job ${line.job}`),
              h("span", { class: "small muted wide-only" }, line.job),
            ),
      ),
    );
    this.picture.show(HEADS + lines.length * ROW + 1);
  }

  /** @param {number} width */
  cellWidth(width) {
    return Math.min(CELL_MAX, width / Math.max(1, this.types.length));
  }

  /** @param {import("./picture.js").Pen} pen */
  draw(pen) {
    const { g, width, colors } = pen;
    const cell = this.cellWidth(width);
    const most = Math.max(
      0,
      ...this.lines.filter((line) => !line.group).flatMap((line) => line.cells.map((one) => one.due_s)),
    );
    const mostOfGroups = Math.max(
      0,
      ...this.lines.filter((line) => line.group).flatMap((line) => line.cells.map((one) => one.due_s)),
    );
    this.types.forEach((type, column) => {
      const left = column * cell;
      g.fillStyle = css(colors.types[typeIndex(type, this.types)]);
      g.fillRect(left + 1, HEADS - 6, cell - 2, 2);
      g.fillStyle = css(colors.ink);
      g.font = `600 ${g.font.replace(/^600 /, "")}`;
      g.fillText(short(g, type, cell - 8), left + 4, 16);
      g.font = g.font.replace(/^600 /, "");
      g.fillStyle = css(colors.muted);
      const price = this.prices[type];
      if (price !== undefined)
        g.fillText(
          short(g, cell < 120 ? `+${number(price)}` : `one more adds ${number(price)}`, cell - 8),
          left + 4,
          36,
        );
    });
    this.lines.forEach((line, index) => {
      const top = HEADS + index * ROW;
      this.types.forEach((type, column) => {
        const one = line.byType.get(type);
        drawCell(pen, one, column * cell, top, cell, line.group ? mostOfGroups : most, line.group);
      });
    });
  }

  /** @param {number} x @param {number} y @returns {import("./picture.js").Spot | null} */
  spotAt(x, y) {
    const column = Math.floor(x / this.cellWidth(this.picture.node.clientWidth));
    const type = this.types[column];
    if (!type) return null;
    if (y < HEADS) {
      const price = this.prices[type];
      return price === undefined
        ? null
        : { text: `One more ${type} would add ${number(price)} to the policy's objective.` };
    }
    const line = this.lines[Math.floor((y - HEADS) / ROW)];
    const cell = line?.byType.get(type);
    if (!line || !cell) return null;
    const who = line.group
      ? plain(line.tenant, 60) || "No tenant"
      : `Job ${line.job}${line.name ? ` · ${plain(line.name, 60)}` : ""}`;
    return {
      text: [
        `${who} on ${type}`,
        `due ${gpuHours(cell.due_s)}, received ${gpuHours(cell.received_s)}${cell.due_s > 0 ? ` (${ratioText(cell)})` : ": nothing was due here"}`,
        cell.gpus ? `runs on ${countOf(cell.gpus, "GPU")} now` : "does not run here now",
      ].join("\n"),
      href: line.group ? undefined : jobPath(line.job),
    };
  }

  /** The same figures as a table. */
  table() {
    /** @type {import("./table.js").Column<Line>[]} */
    const columns = [
      {
        head: "Job",
        cell: (line) =>
          line.group
            ? h("b", null, plain(line.tenant, 60) || "default")
            : link(jobPath(line.job), `${line.job} ${plain(line.name, 60)}`),
      },
      ...this.types.map((type) => ({
        head: `${type}: received of due`,
        class: "number",
        cell: (/** @type {Line} */ line) => {
          const cell = line.byType.get(type);
          return (
            cell && [
              `${gpuHours(cell.received_s)} of ${gpuHours(cell.due_s)} `,
              h("b", null, cell.due_s > 0 ? ratioText(cell) : "–"),
              cell.gpus ? ` · runs on ${cell.gpus}` : "",
            ]
          );
        },
      })),
      { head: "Behind", class: "number", cell: (line) => gapText(gap(line)) },
    ];
    return shortTable("Matrix of jobs and GPU types", columns, this.lines, {
      key: (line) => `${line.group} ${line.tenant} ${line.job}`,
    });
  }

  stop() {
    this.picture.stop();
  }
}

/** @param {number} value  GPU seconds */
export const gapText = (value) =>
  Math.abs(value) < 1 ? "even" : value > 0 ? gpuHours(value) : `ahead ${gpuHours(-value)}`;

/** @param {CanvasRenderingContext2D} g @param {string} text @param {number} width */
function short(g, text, width) {
  let cut = text;
  while (cut.length > 1 && g.measureText(cut).width > width) cut = cut.slice(0, -1);
  return cut;
}

/**
 * @param {import("./picture.js").Pen} pen @param {Cell | undefined} cell
 * @param {number} left @param {number} top @param {number} width @param {number} most @param {boolean} group
 */
function drawCell({ g, colors }, cell, left, top, width, most, group) {
  const [x, y, w, t] = [left + 1, top + 1, width - 2, ROW - 2];
  const text = ratioText(cell);
  g.beginPath();
  g.roundRect(x, y, w, t, 2);
  if (!cell || !text) {
    g.fillStyle = css(colors.line, 0.4);
    g.fill();
    return;
  }
  const ground = mix(
    colors.ground,
    ratioColor(cell.due_s, cell.received_s, colors),
    opacity(cell.due_s, cell.received_s, most),
  );
  // Time that was not due here is no cell of the policy: an outline.
  if (cell.due_s <= 0) {
    g.strokeStyle = css(colors.ahead, 0.7);
    g.beginPath();
    g.roundRect(x + 0.5, y + 0.5, w - 1, t - 1, 2);
    g.stroke();
  } else {
    g.fillStyle = css(ground);
    g.fill();
  }
  const ink = cell.due_s <= 0 ? colors.ink : readable(ground, colors.ink, colors.ground);
  g.fillStyle = css(ink);
  if (cell.gpus && w < 72) g.fillRect(x, y, 3, t);
  else if (cell.gpus) {
    g.beginPath();
    g.arc(x + 11, y + t / 2, 4, 0, 2 * Math.PI);
    g.fill();
    if (cell.gpus > 1 && w > 88) g.fillText(String(cell.gpus), x + 20, y + t / 2 + 0.5);
  }
  if (w < 40) return;
  g.textAlign = "right";
  if (group) g.font = `600 ${g.font}`;
  g.fillText(text, x + w - (w < 72 ? 4 : 8), y + t / 2 + 0.5);
  if (group) g.font = g.font.replace(/^600 /, "");
  g.textAlign = "left";
}
