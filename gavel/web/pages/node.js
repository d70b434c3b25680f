// @ts-check
// One node: its GPUs and jobs, the turns of its last day, drain and resume.

import { call, get, may, nodeUrl } from "./api.js";
import { ask, h, jobPath, link, notice, patch } from "./dom.js";
import { gpuState, jobsOf } from "./nodes.js";
import { Lanes, viewChoice } from "./picture.js";
import { readAgain } from "./reading.js";
import { shortTable } from "./table.js";
import { gpuLanes, leaseTable } from "./turns.js";
import { ago, capital, clock, number, plain, seconds } from "./values.js";

/** Turns of a node that its page shows. */
const LEASES = 300;

/** @param {import("./app.js").Context} context @param {string[]} parts @returns {import("./app.js").Page} */
export function node(context, [name]) {
  /** @type {any} */
  let shown = null;
  /** @type {any[]} */
  let leases = [];
  let problem = "";
  let view = "picture";
  const lanes = new Lanes(`Turns of jobs on ${name}. The table beside it has the same.`, context.go);
  const root = h("div");

  async function load() {
    try {
      const [answer, past] = await Promise.all([
        get("/v1/nodes", { nodes: [name] }),
        get("/v1/leases", { node: name, page_size: LEASES }),
      ]);
      [shown, leases, problem] = [answer.nodes[0], past.leases, ""];
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    draw();
  }

  function draw() {
    const now = Date.now() / 1000;
    if (!shown)
      return patch(root, h("h1", null, plain(name, 80)), h("p", { class: "empty" }, problem || "Reading the node …"));
    if (leases.length) {
      const first = Math.min(...leases.map((lease) => seconds(lease.granted) ?? now));
      lanes.show(
        gpuLanes(leases, now, (gpu) => gpu.startsWith(`${name}:`)),
        Math.max(first, now - 86400),
        now,
      );
    }
    patch(
      root,
      h(
        "div",
        { class: "head" },
        h("h1", null, plain(shown.name, 80)),
        h("span", { class: `state ${shown.state}` }, shown.state),
        h("div", { class: "push tools" }, may(context.me.role, "operator") && commands(shown, load)),
      ),
      shown.why &&
        h(
          "p",
          { class: "lead", key: "why" },
          plain(shown.why, 400),
          shown.back ? ` It is tried again ${ago(seconds(shown.back), now)}.` : "",
        ),
      h(
        "div",
        { class: "split", key: "now" },
        h(
          "section",
          { "aria-label": "GPUs" },
          h("div", { class: "head" }, h("h2", null, "GPUs")),
          shortTable(
            "GPUs",
            [
              { head: "GPU", class: "number", cell: (gpu) => gpu.index },
              {
                head: "State",
                cell: (gpu) => [
                  h("i", { class: `gpu swatch ${gpuState(shown, gpu)}` }),
                  gpu.broken
                    ? `broken: ${plain(gpu.broken, 120)}`
                    : gpu.withheld
                      ? "withheld: an ended job may have left processes on it"
                      : gpuState(shown, gpu),
                ],
              },
              {
                head: "Jobs",
                cell: (gpu) =>
                  gpu.jobs.map((/** @type {string} */ job, /** @type {number} */ at) => [
                    at ? ", " : "",
                    link(jobPath(job), job),
                  ]),
              },
              {
                head: "Memory",
                class: "number",
                optional: true,
                cell: (gpu) => (gpu.memory_gb ? `${number(gpu.memory_used_gb)} of ${number(gpu.memory_gb)} GB` : ""),
              },
              {
                head: "°C",
                class: "number",
                optional: true,
                cell: (gpu) => (gpu.temperature_c ? number(gpu.temperature_c) : ""),
              },
              { head: "Name", cell: (gpu) => plain(gpu.name, 60) },
            ],
            shown.gpus,
            { key: (gpu) => String(gpu.index) },
          ),
        ),
        h(
          "section",
          { "aria-label": "Facts" },
          h("div", { class: "head" }, h("h2", null, "Facts")),
          nodeFacts(shown, now),
        ),
      ),
      h(
        "section",
        { key: "turns", "aria-label": "Turns" },
        h(
          "div",
          { class: "head" },
          h("h2", null, "Turns of the last day"),
          leases.length > 0 &&
            h(
              "div",
              { class: "push" },
              viewChoice(view, (chosen) => {
                view = chosen;
                draw();
              }),
            ),
        ),
        leases.length === 0
          ? h("p", { class: "empty", key: "none" }, "No job has had a turn here.")
          : view === "table"
            ? h("div", { key: "twin" }, leaseTable(leases, now, true))
            : lanes.node,
      ),
    );
    if (view === "picture") lanes.picture.paint();
  }

  return readAgain(context, name, load, root, { theme: () => lanes.picture.paint(), stop: () => lanes.stop() });
}

/** @param {any} node @param {number} now */
function nodeFacts(node, now) {
  /** @type {[string, import("./dom.js").Child][]} */
  const pairs = [
    ["Type", plain(node.worker_type, 60)],
    ["Since", node.since ? `${clock(seconds(node.since))}, ${ago(seconds(node.since), now)}` : ""],
    ["Heard", ago(seconds(node.heard), now)],
    ["Agent", node.agent_version],
    ["Driver", node.driver_version],
    ["CPUs", node.cpus ? number(node.cpus) : ""],
    ["Memory", node.memory_gb ? `${number(node.memory_gb)} GB` : ""],
    ["Storage", plain(node.storage, 60)],
    ["Containment", node.containment],
    ["Emulated speed", node.speed || ""],
    [
      "Labels",
      Object.entries(node.labels ?? {})
        .map(([key, value]) => `${plain(key, 60)}=${plain(value, 60)}`)
        .join(", "),
    ],
  ];
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(([, value]) => value).map(([term, value]) => [h("dt", null, term), h("dd", null, value)]),
  );
}

/** @param {any} node @param {() => void} done */
function commands(node, done) {
  const meaning = /** @type {Record<string, string>} */ ({
    drain: `It gets no new jobs. ${jobsOf(node).length ? `Jobs ${jobsOf(node).join(", ")} finish their turn there.` : "No job runs there."}`,
    resume: "It takes jobs again, and its withheld GPUs count as free.",
    remove: "The scheduler forgets it. It is refused while the node is up or has leases.",
  });
  const button = (/** @type {string} */ action, /** @type {boolean} */ can) =>
    can &&
    h(
      "button",
      {
        type: "button",
        class: action === "remove" ? "danger" : null,
        onclick: async () => {
          const reason = h("input", { maxlength: 256, autocomplete: "off" });
          const why = action !== "remove" && h("label", { class: "field" }, "Reason, for others (optional)", reason);
          const title = `${capital(action)} ${plain(node.name, 60)}`;
          const answer = await ask(`${title}?`, [h("p", null, meaning[action]), why], {
            label: title,
            danger: action === "remove",
            submit: () =>
              call("POST", `${nodeUrl(node.name)}:${action}`, why ? { reason: reason.value.trim() } : undefined),
          });
          if (!answer) return;
          notice(`${plain(node.name, 60)}: ${action === "remove" ? "removed" : answer.state}.`);
          done();
        },
      },
      capital(action),
    );
  return [
    button("drain", !node.drained),
    button(
      "resume",
      node.drained || node.state === "faulty" || node.gpus.some((/** @type {any} */ gpu) => gpu.withheld),
    ),
    button("remove", node.state === "lost" || node.state === "silent"),
  ];
}
