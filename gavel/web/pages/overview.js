// @ts-check
// The overview: four numbers, and the matrix of what each job was due and what it received.

import { call, get, may } from "./api.js";
import { ask, h, jobPath, link, notice, patch } from "./dom.js";
import { FOLD, Matrix, linesOf } from "./matrix.js";
import { viewChoice } from "./picture.js";
import { readAgain } from "./reading.js";
import { clock, countOf, plain, span } from "./values.js";

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function overview(context) {
  const opened = new Set();
  /** @type {{tenants: any[], jobs: any[], folded: boolean, prices: Record<string, number>, types: string[]} | null} */
  let figures = null;
  let view = new URLSearchParams(location.search).get("view") ?? "picture";
  let problem = "";
  let stopped = false;
  const matrix = new Matrix(context, (tenant) => {
    if (!opened.delete(tenant)) opened.add(tenant);
    load();
  });
  const node = h("div");

  async function load() {
    try {
      const [tenants, jobs, nodes] = await Promise.all([
        get("/v1/matrix", { by_tenant: true, page_size: FOLD }),
        get("/v1/matrix", { page_size: FOLD }),
        get("/v1/nodes"),
      ]);
      const folded = Boolean(jobs.next_page_token) && tenants.rows.length > 1;
      if (folded) {
        const parts = await Promise.all([...opened].map((tenant) => get("/v1/matrix", { tenant, page_size: FOLD })));
        jobs.rows = parts.flatMap((part) => part.rows);
      }
      const types = context.types([
        ...nodes.nodes.map((/** @type {any} */ one) => one.worker_type),
        ...Object.keys(tenants.price_per_gpu),
        ...tenants.rows.flatMap((/** @type {any} */ row) =>
          row.cells.map((/** @type {any} */ cell) => cell.worker_type),
        ),
      ]);
      figures = { tenants: tenants.rows, jobs: jobs.rows, folded, prices: tenants.price_per_gpu, types };
      problem = "";
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    if (!stopped) draw(context.live.state);
  }

  /** @param {import("./live.js").State} state */
  function draw(state) {
    const { overview } = state;
    if (!overview) {
      patch(
        node,
        h("h1", { class: "unseen" }, "Overview"),
        h("p", { class: "empty" }, state.staleWhy || "Reading the state of the cluster …"),
      );
      return;
    }
    if (figures) {
      const lines = linesOf(figures.tenants, figures.jobs, (tenant) =>
        figures?.folded ? opened.has(tenant) : !opened.has(tenant),
      );
      matrix.show(lines, figures.types, figures.prices);
    }
    patch(
      node,
      h("h1", { class: "unseen" }, "Overview"),
      h("div", { class: "figures" }, fourNumbers(overview)),
      h(
        "div",
        { class: "split aside", key: "body" },
        h(
          "section",
          { "aria-label": "Received and due" },
          h(
            "div",
            { class: "head" },
            h("h2", null, "Received ÷ due"),
            legend(),
            h(
              "div",
              { class: "push tools" },
              viewChoice(view, (name) => {
                view = name;
                context.go(name === "table" ? "/?view=table" : "/", true);
                draw(context.live.state);
              }),
            ),
          ),
          problem && !figures
            ? h("p", { class: "empty", key: "problem" }, problem)
            : !figures
              ? h("p", { class: "empty", key: "loading" }, "Reading the matrix …")
              : figures.jobs.length + figures.tenants.length === 0
                ? h(
                    "p",
                    { class: "empty", key: "none" },
                    "No job was due or has received GPU time lately. ",
                    link("/queue?submit=1", "Submit a job"),
                    " to see its row here.",
                  )
                : view === "table"
                  ? h("div", { key: "twin" }, matrix.table())
                  : matrix.node,
        ),
        h("div", null, policy(overview, context), warnings(overview.status)),
      ),
    );
    if (view === "picture") matrix.picture.paint();
  }

  return readAgain(context, "Overview", load, node, {
    update: draw,
    theme: () => matrix.picture.paint(),
    stop() {
      stopped = true;
      matrix.stop();
    },
  });
}

/** @param {any} overview */
function fourNumbers({ status, jobs, waiting_gpus, oldest_wait, at }) {
  const waits = jobs.queued + jobs.preempted;
  const held = jobs.held ? `, ${jobs.held.toLocaleString("en")} held` : "";
  const count = status.warnings.length;
  return [
    figure(
      "GPUs busy",
      [status.gpus_busy.toLocaleString("en"), h("small", null, ` / ${status.gpus.toLocaleString("en")}`)],
      [
        h(
          "div",
          { class: "meter" },
          h("i", { style: { width: `${status.gpus ? (100 * status.gpus_busy) / status.gpus : 0}%` } }),
        ),
        link("/nodes", countOf(status.nodes, "node")),
        ` · ${countOf(jobs.running, "job")} running`,
      ],
    ),
    figure(
      "Waiting",
      waits.toLocaleString("en"),
      waits
        ? [
            link("/queue?state=queued,preempted", countOf(waits, "job")),
            ` for ${countOf(waiting_gpus, "GPU")}${held}`,
          ]
        : `no job waits${held}`,
    ),
    figure(
      "Oldest wait",
      oldest_wait ? span(at - oldest_wait.since) : "none",
      oldest_wait
        ? [link(jobPath(oldest_wait.job), `Job ${oldest_wait.job}`), ": ", plain(oldest_wait.text, 200)]
        : "every job has its GPUs",
    ),
    figure(
      "Warnings",
      String(count),
      count ? h("a", { href: "#warnings" }, plain(status.warnings[0], 120)) : "nothing to look into",
      count ? "bad" : "",
    ),
  ];
}

/** @param {string} label @param {import("./dom.js").Child} value @param {import("./dom.js").Child} why @param {string} [kind] */
const figure = (label, value, why, kind = "") =>
  h(
    "div",
    { class: `figure ${kind}` },
    h("div", { class: "label" }, label),
    h("div", { class: "value" }, value),
    h("div", { class: "why small" }, why),
  );

function legend() {
  return h(
    "div",
    { class: "legend" },
    h("span", null, "behind ¼×", h("i", { class: "ramp", "aria-hidden": "true" }), "4× ahead"),
    h("span", null, "stronger: more was due"),
    h("span", null, h("i", { class: "dot", "aria-hidden": "true" }), "runs there now"),
  );
}

/** @param {any} status */
function warnings(status) {
  return h(
    "section",
    { key: "warnings", id: "warnings", "aria-label": "Warnings" },
    h("div", { class: "head" }, h("h2", null, "Warnings")),
    status.warnings.length
      ? h(
          "ul",
          { class: "remedies" },
          status.warnings.map((/** @type {string} */ text) => h("li", null, plain(text, 1000))),
        )
      : h("p", { class: "muted" }, "None."),
  );
}

/** @param {any} overview @param {import("./app.js").Context} context */
function policy({ status, round }, context) {
  return h(
    "section",
    { key: "policy", "aria-label": "Policy" },
    h(
      "div",
      { class: "head" },
      h("h2", null, "Policy"),
      may(context.me.role, "operator") &&
        h("button", { type: "button", class: "push", onclick: () => changePolicy(status.policy) }, "Change policy"),
    ),
    h(
      "dl",
      { class: "facts" },
      h("dt", null, "In force"),
      h("dd", null, plain(status.policy, 400)),
      round && [
        h("dt", null, "Round"),
        h(
          "dd",
          null,
          link("/rounds", `${round.number.toLocaleString("en")}`),
          `, until ${clock(Date.parse(round.ends) / 1000)}: ${round.moved} moved, ${round.renewed} renewed`,
        ),
      ],
      h("dt", null, "Scheduler"),
      h("dd", null, `${status.version}, since ${clock(Date.parse(status.started) / 1000)}`),
    ),
  );
}

/** @param {string} current */
async function changePolicy(current) {
  const { available } = await get("/v1/policy");
  const field = h("input", {
    name: "policy",
    list: "policies",
    value: current,
    required: true,
    spellcheck: "false",
    autocomplete: "off",
  });
  const done = await ask(
    "Change policy",
    h(
      "div",
      null,
      h("label", { class: "field" }, "Policy, with its parameters and modifiers, such as las+packing", field),
      h(
        "datalist",
        { id: "policies" },
        available.map((/** @type {string} */ name) => h("option", { value: name })),
      ),
      h(
        "p",
        { class: "small muted" },
        "It is tried first, and refused if it does not work. It counts from the next allocation on. gavel policy set does the same.",
      ),
    ),
    { label: "Change", submit: () => call("PUT", "/v1/policy", { policy: field.value.trim() }) },
  );
  if (done) notice(`The policy is ${done.policy}.`);
}
