// @ts-check
// The nodes as tiles, with a square for each GPU.

import { get } from "./api.js";
import { h, jobPath, link, nodePath, patch } from "./dom.js";
import { viewChoice } from "./picture.js";
import { readAgain } from "./reading.js";
import { shortTable } from "./table.js";
import { ago, countOf, plain, seconds } from "./values.js";

/** Up to this many nodes, tiles have room for their names. */
const ROOMY = 80;

/** What a GPU does, as the class of its square. @param {any} node @param {any} gpu */
export function gpuState(node, gpu) {
  if (gpu.broken) return "broken";
  if (node.state === "lost" || node.state === "silent") return "away";
  if (gpu.jobs.length || gpu.withheld) return "busy";
  return node.state === "up" ? "free" : "drained";
}

/** @param {any} node */
function gpuWords(node) {
  const counts = /** @type {Record<string, number>} */ ({});
  for (const gpu of node.gpus) counts[gpuState(node, gpu)] = (counts[gpuState(node, gpu)] ?? 0) + 1;
  return Object.entries(counts)
    .map(([state, count]) => `${count} ${state === "away" ? "out of reach" : state}`)
    .join(", ");
}

/** Nodes by GPU type. @param {any[]} all @returns {[string, any[]][]} */
export function byType(all) {
  const kinds = new Map();
  for (const node of all) kinds.set(node.worker_type, [...(kinds.get(node.worker_type) ?? []), node]);
  return [...kinds].sort(([a], [b]) => a.localeCompare(b));
}

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function nodes(context) {
  /** @type {any[] | null} */
  let all = null;
  let problem = "";
  let text = new URLSearchParams(location.search).get("q") ?? "";
  let view = new URLSearchParams(location.search).get("view") ?? "picture";
  const search = h("input", {
    type: "search",
    placeholder: "Name, type, state, job …",
    "aria-label": "Search the nodes",
    value: text,
    spellcheck: "false",
    oninput: () => {
      text = search.value;
      address();
      draw();
    },
  });
  const root = h("div");

  const address = () => {
    const query = new URLSearchParams({ ...(text ? { q: text } : {}), ...(view === "table" ? { view } : {}) });
    context.go(query.size ? `/nodes?${query}` : "/nodes", true);
  };

  async function load() {
    try {
      all = (await get("/v1/nodes")).nodes;
      problem = "";
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    draw();
  }

  function draw() {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    const listed = (all ?? []).filter((node) => {
      const words = [
        node.name,
        node.worker_type,
        node.state,
        node.why,
        ...node.gpus.flatMap((/** @type {any} */ gpu) => gpu.jobs),
      ]
        .join("\n")
        .toLowerCase();
      return wanted.every((part) => words.includes(part));
    });
    const unwell = listed.filter(
      (node) => node.state !== "up" || node.gpus.some((/** @type {any} */ gpu) => gpu.broken),
    );
    patch(
      root,
      h("h1", { class: "unseen" }, "Nodes"),
      h(
        "div",
        { class: "head" },
        search,
        h("span", { class: "small muted" }, countOf(listed.length, "node")),
        gpuLegend(),
        h(
          "div",
          { class: "push" },
          viewChoice(view, (name) => {
            view = name;
            address();
            draw();
          }),
        ),
      ),
      problem && h("p", { class: "problem" }, problem),
      !all
        ? h("p", { class: "empty" }, "Reading the nodes …")
        : all.length === 0
          ? h("p", { class: "empty" }, "No node has joined. gavel agent joins one.")
          : null,
      unwell.length > 0 &&
        h(
          "section",
          { "aria-label": "Nodes to look into", key: "unwell" },
          h("div", { class: "head" }, h("h2", null, "To look into")),
          nodeTable(unwell),
        ),
      view === "table"
        ? h("section", { key: "table", "aria-label": "All nodes" }, nodeTable(listed))
        : h(
            "div",
            { class: "kinds", key: "kinds" },
            byType(listed).map(([type, some]) => kind(type, some)),
          ),
    );
  }

  return readAgain(context, "Nodes", load, root, { keys: { "/": () => search.focus() } });
}

function gpuLegend() {
  return h(
    "div",
    { class: "legend" },
    [
      ["busy", "held by a job"],
      ["free", "free"],
      ["drained", "drained"],
      ["broken", "broken"],
      ["away", "out of reach"],
    ].map(([state, label]) => h("span", null, h("i", { class: `gpu ${state}` }), label)),
  );
}

/** @param {string} type @param {any[]} some */
function kind(type, some) {
  const gpus = some.flatMap((node) => node.gpus.map((/** @type {any} */ gpu) => gpuState(node, gpu)));
  const busy = gpus.filter((state) => state === "busy").length;
  const roomy = some.length <= ROOMY;
  return h(
    "section",
    { key: `type ${type}`, "aria-label": type },
    h(
      "div",
      { class: "head" },
      h("h2", null, type),
      h(
        "span",
        { class: "muted" },
        `${busy.toLocaleString("en")} of ${countOf(gpus.length, "GPU")} held · ${countOf(some.length, "node")}`,
      ),
    ),
    h(
      "div",
      { class: roomy ? "tiles roomy" : "tiles" },
      some.map((node) =>
        h(
          "a",
          {
            key: `node ${node.name}`,
            class: "tile",
            href: nodePath(node.name),
            "aria-label": `${plain(node.name, 60)}, ${node.state}: ${gpuWords(node)}`,
            title: `${plain(node.name, 60)}: ${gpuWords(node)}`,
          },
          roomy &&
            h(
              "span",
              { class: "name" },
              node.state === "up"
                ? plain(node.name, 40)
                : h("span", { class: `state ${node.state}` }, plain(node.name, 40)),
            ),
          h(
            "span",
            { class: "gpus" },
            node.gpus.map((/** @type {any} */ gpu) => h("i", { class: `gpu ${gpuState(node, gpu)}` })),
          ),
          roomy &&
            h(
              "span",
              { class: "small muted" },
              jobsOf(node).length
                ? `jobs ${jobsOf(node).slice(0, 3).join(", ")}${jobsOf(node).length > 3 ? " …" : ""}`
                : "no job",
            ),
        ),
      ),
    ),
  );
}

/** @param {any} node @returns {string[]} */
export const jobsOf = (node) => [
  ...new Set(/** @type {string[]} */ (node.gpus.flatMap((/** @type {any} */ gpu) => gpu.jobs))),
];

/** @param {any[]} some */
function nodeTable(some) {
  const now = Date.now() / 1000;
  return shortTable(
    "Nodes",
    [
      { head: "Node", cell: (node) => link(nodePath(node.name), plain(node.name, 60)) },
      { head: "State", cell: (node) => h("span", { class: `state ${node.state}` }, node.state) },
      { head: "Type", cell: (node) => plain(node.worker_type, 40) },
      { head: "GPUs", cell: gpuWords },
      {
        head: "Jobs",
        cell: (node) =>
          jobsOf(node)
            .slice(0, 8)
            .map((job, at) => [at ? ", " : "", link(jobPath(job), job)]),
      },
      { head: "Heard", cell: (node) => ago(seconds(node.heard), now) },
      { head: "Why", cell: (node) => plain(node.why, 160) },
    ],
    some,
    { key: (node) => node.name, empty: "No node matches." },
  );
}
