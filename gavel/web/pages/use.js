// @ts-check
// Who used how much GPU time, of which type and at what cost; and how much of it was useful.

import { get, withQuery } from "./api.js";
import { typeIndex } from "./colors.js";
import { h, patch } from "./dom.js";
import { choice, inAddress, readAgain } from "./reading.js";
import { shortTable } from "./table.js";
import { gpuHours, isoDay, number, percent, plain } from "./values.js";

const DAY_S = 86400;
/** @type {[string, string][]} */
const BY_JOBS = [
  ["user", "user"],
  ["tenant", "tenant"],
  ["job_type", "job type"],
];
/** @type {[string, string][]} */
const BY_GPUS = [
  ["type", "GPU type"],
  ["node", "node"],
  ["day", "day"],
];

/**
 * A part of the GPU time of a row, with the class of its colour.
 * @typedef {{name: string, color: string, of: (row: any) => number}} Part
 */

/** What GPUs did while jobs held them, and while none did. @type {Part[]} */
const KINDS = [
  { name: "useful", color: "c2", of: (row) => row.useful_s },
  { name: "restart", color: "c1", of: (row) => row.restart_s },
  { name: "lost", color: "c7", of: (row) => row.lost_s },
  { name: "idle", color: "c5", of: (row) => row.idle_s },
  { name: "free", color: "free", of: (row) => row.whole?.free_s ?? 0 },
  {
    name: "out of use",
    color: "out",
    of: ({ whole }) => (whole ? whole.broken_s + whole.unreachable_s + whole.drained_s : 0),
  },
];

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function use(context) {
  let by = inAddress("by", "user");
  let split = inAddress("split", "type");
  let since = inAddress("since", isoDay(new Date(Date.now() - 7 * DAY_S * 1000)));
  let until = inAddress("until", "");
  /** @type {any[] | null} */
  let rows = null;
  let problem = "";
  const node = h("div");

  async function load() {
    try {
      const time = { since: since && `${since}T00:00:00Z`, until: until && `${until}T23:59:59Z` };
      const asked = split;
      const answer = await get(split === "kind" ? "/v1/gpu-time" : "/v1/usage", { by, ...time });
      if (asked !== split) return;
      rows = answer.rows.map((/** @type {any} */ row) => ({ ...row, name: row.name ?? row.who }));
      problem = "";
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    draw();
  }

  const choose = (/** @type {Record<string, string>} */ change) => {
    ({ by = by, split = split, since = since, until = until } = change);
    // Nodes and days are known only by what their GPUs did.
    if (BY_GPUS.some(([name]) => name === by)) split = change.split === "type" ? ((by = "user"), "type") : "kind";
    context.go(
      withQuery("/use", { by: by === "user" ? "" : by, split: split === "type" ? "" : split, since, until }),
      true,
    );
    rows = null;
    load();
  };

  function draw() {
    const parts =
      split === "kind"
        ? KINDS.filter((part) => (rows ?? []).some((row) => part.of(row) > 0))
        : typesOf(rows ?? [], context);
    patch(
      node,
      h("h1", { class: "unseen" }, "Use"),
      h(
        "div",
        { class: "head" },
        h("h2", null, "GPU time"),
        choice(
          "What is shown",
          [
            ["type", "by GPU type"],
            ["kind", "what it was for"],
          ],
          split,
          (value) => choose({ split: value }),
        ),
        choice("A row for each", split === "kind" ? [...BY_JOBS, ...BY_GPUS] : BY_JOBS, by, (value) =>
          choose({ by: value }),
        ),
        h(
          "div",
          { class: "tools" },
          day("From", since, (value) => choose({ since: value })),
          h("span", { class: "muted" }, "to"),
          day("To", until, (value) => choose({ until: value })),
        ),
        rows?.length
          ? h(
              "button",
              { type: "button", class: "push", onclick: () => save(usageCsv(rows ?? [], by), `usage-by-${by}.csv`) },
              "CSV",
            )
          : null,
      ),
      problem && h("p", { class: "problem" }, problem),
      rows &&
        h(
          "div",
          { class: "legend" },
          parts.map((part) => h("span", null, h("i", { class: `swatch ${part.color}` }), part.name)),
        ),
      rows ? table(rows, parts, by, split) : problem ? null : h("p", { class: "empty" }, "Reading the usage …"),
    );
  }

  return readAgain(context, "Use", load, node);
}

/** @param {string} name @param {string} value @param {(value: string) => void} choose */
const day = (name, value, choose) =>
  h("input", {
    type: "date",
    "aria-label": name,
    value,
    onchange: (/** @type {any} */ event) => choose(event.target.value),
  });

/** A part for each GPU type that was used. @param {any[]} rows @param {import("./app.js").Context} context @returns {Part[]} */
function typesOf(rows, context) {
  const used = new Set(rows.flatMap((row) => Object.keys(row.gpu_s ?? {})));
  const all = context.types([...used]);
  return all
    .filter((type) => used.has(type))
    .map((type) => ({ name: type, color: `c${typeIndex(type, all)}`, of: (row) => row.gpu_s[type] ?? 0 }));
}

/** @param {any[]} rows @param {Part[]} parts @param {string} by @param {string} split */
function table(rows, parts, by, split) {
  const total = (/** @type {any} */ row) => parts.reduce((sum, part) => sum + part.of(row), 0);
  const most = Math.max(1, ...rows.map(total));
  const heads = Object.fromEntries([...BY_JOBS, ...BY_GPUS]);
  /** @type {import("./table.js").Column<any>[]} */
  const columns = [
    {
      head: heads[by]?.replace(/^./, (letter) => letter.toUpperCase()) ?? by,
      cell: (row) => plain(row.name, 80) || "none",
    },
    {
      head: "Parts",
      class: "wide-only half",
      cell: (row) =>
        h(
          "div",
          { class: "bars", style: { width: `${(100 * total(row)) / most}%` } },
          parts.map(
            (part) =>
              part.of(row) > 0 && h("i", { class: part.color, style: { flex: `${part.of(row) / total(row)} 1 0` } }),
          ),
        ),
    },
    { head: "GPU time", class: "number", cell: (row) => gpuHours(total(row)) },
    ...parts.map((part) => ({
      head: part.name,
      class: "number",
      cell: (/** @type {any} */ row) => (part.of(row) > 0 ? gpuHours(part.of(row)) : ""),
    })),
  ];
  const jobs = (/** @type {string} */ head, /** @type {string} */ field) => ({
    head,
    class: "number",
    cell: (/** @type {any} */ row) => row[field].toLocaleString("en"),
  });
  if (split === "kind")
    columns.push({
      head: "Useful of held",
      class: "number",
      cell: (row) => (row.held_s > 0 ? percent(row.useful_s / row.held_s) : ""),
    });
  else
    columns.push(
      { head: "Cost", class: "number", optional: true, cell: (row) => (row.cost > 0 ? number(row.cost) : "") },
      jobs("Jobs", "jobs"),
      jobs("Completed", "completed"),
      jobs("Failed", "failed"),
    );
  return shortTable("GPU time", columns, rows, {
    key: (row) => row.name || "-",
    empty: "No job has used a GPU in this time.",
  });
}

/**
 * Rows as CSV, in seconds. Text that a spreadsheet would run as a formula is led by an apostrophe.
 * @param {any[]} rows @param {string} by
 */
export function usageCsv(rows, by) {
  const cell = (/** @type {unknown} */ value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const flat = rows.map(({ name, who, whole, gpu_s, ...row }) => ({
    [by]: name,
    ...Object.fromEntries(Object.entries(gpu_s ?? {}).map(([type, time]) => [`gpu_s_${type}`, time])),
    ...row,
    ...whole,
  }));
  const heads = [...new Set(flat.flatMap(Object.keys))];
  return [heads, ...flat.map((row) => heads.map((head) => row[head]))]
    .map((row) => row.map(cell).join(","))
    .join("\r\n");
}

/** @param {string} text @param {string} name  of the file */
function save(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
