// @ts-check
// A job: why it waits or runs, where it ran and why each turn ended, its output, its spec.

import { call, get, jobUrl, may, pages } from "./api.js";
import { expected, linked, remedies, ways } from "./explanation.js";
import { ask, h, jobPath, link, nodePath, notice, patch } from "./dom.js";
import { jobFile } from "./jobfile.js";
import { typeIndex } from "./colors.js";
import { LogPane } from "./log.js";
import { Lanes, viewChoice } from "./picture.js";
import { CAN, ENDED, bulkCommand, submit } from "./commands.js";
import { leaseTable, lanesOf } from "./turns.js";
import { ago, capital, clock, countOf, gpuHours, number, percent, plain, seconds, shellWords, span } from "./values.js";

/** How many of the last leases are shown. */
const LEASES = 500;

/** @param {import("./app.js").Context} context @param {string[]} parts @returns {import("./app.js").Page} */
export function job(context, [id]) {
  /** @type {any} */
  let shown = null;
  /** @type {any} */
  let explanation = null;
  /** @type {any[]} */
  let leases = [];
  /** @type {[string, string][]} */
  let measured = [];
  let more = false;
  let problem = "";
  let view = "picture";
  let stopped = false;
  let seen = "";
  const lanes = new Lanes(`Turns of job ${id} over time. The table beside it has the same.`, context.go);
  const log = new LogPane(id);
  const node = h("div", null, h("p", { class: "empty" }, `Reading job ${plain(id, 40)} …`));

  async function load() {
    try {
      shown = await get(jobUrl(id));
      const [timeline, answer, words] = await Promise.all([
        pages(`${jobUrl(id)}/timeline`, {}, "leases", LEASES),
        get(`${jobUrl(id)}:explain`).catch(() => null),
        get(`${jobUrl(id)}/measured`).catch(() => []),
      ]);
      [leases, more, explanation, measured, problem] = [timeline.items, timeline.more, answer, words, ""];
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    if (!stopped) draw();
  }

  function draw() {
    if (!shown) {
      patch(node, h("h1", null, `Job ${plain(id, 40)}`), h("p", { class: "empty" }, problem || "Reading the job …"));
      return;
    }
    const now = Date.now() / 1000;
    const spec = shown.spec ?? {};
    log.show(shown.attempt, ranksOf(shown, leases));
    const types = context.types(leases.map((lease) => lease.worker_type));
    const used = types.filter((type) => leases.some((lease) => lease.worker_type === type));
    if (leases.length) {
      const [from, to] = [
        Math.min(...leases.map((one) => seconds(one.granted) ?? now)),
        Math.max(...leases.map((one) => seconds(one.ended) ?? now)),
      ];
      lanes.show(lanesOf(leases, types, now), from, to);
    }
    patch(
      node,
      h(
        "div",
        { class: "head" },
        h("h1", null, plain(spec.name, 120) || `Job ${id}`),
        h("span", { class: `state ${shown.state}` }, shown.state),
        h("span", { class: "muted" }, `job ${id}`),
        h("div", { class: "push tools" }, actions(shown, context, load)),
      ),
      problem && h("p", { class: "problem", key: "problem" }, problem),
      explanation &&
        h("p", { class: "lead", key: "lead" }, linked(explanation.text, explanation.details?.others ?? [])),
      explanation?.expected_start && h("p", { class: "muted", key: "start" }, expected(explanation, now)),
      h(
        "div",
        { class: "split", key: "facts" },
        h(
          "div",
          null,
          h(
            "section",
            { "aria-label": "Turns" },
            h(
              "div",
              { class: "head" },
              h("h2", null, "Turns"),
              h(
                "div",
                { class: "legend" },
                used.map((type) => h("span", null, h("i", { class: `swatch c${typeIndex(type, types)}` }), type)),
              ),
              more && h("span", { class: "small muted" }, `the last ${LEASES}`),
              leases.length > 0 &&
                h(
                  "div",
                  { class: "push" },
                  viewChoice(view, (name) => {
                    view = name;
                    draw();
                  }),
                ),
            ),
            leases.length === 0
              ? h("p", { class: "empty", key: "none" }, "It has had no turn yet.")
              : view === "table"
                ? h("div", { key: "twin" }, leaseTable(leases, now))
                : lanes.node,
          ),
          explanation && ways(explanation),
        ),
        h(
          "div",
          null,
          h(
            "section",
            { "aria-label": "Facts" },
            h("div", { class: "head" }, h("h2", null, "Facts")),
            facts(shown, measured, now),
          ),
          explanation && remedies(explanation),
        ),
      ),
      log.node,
      h(
        "section",
        { key: "spec", "aria-label": "Job file" },
        h(
          "div",
          { class: "head" },
          h("h2", null, "Job file"),
          spec.launch &&
            h(
              "button",
              { type: "button", class: "push", onclick: () => submit(context, jobFile(spec)) },
              "Change and submit",
            ),
        ),
        spec.launch
          ? h(
              "pre",
              { class: "spec", tabindex: "0", role: "group", "aria-label": "The job as a file" },
              jobFile(spec),
            )
          : h("p", { class: "muted" }, "Only its owner and operators see what it runs."),
      ),
    );
    if (view === "picture") lanes.picture.paint();
  }

  load();
  return {
    node,
    get title() {
      return `${shown?.spec?.name || "Job"} (${id})`;
    },
    update(state, kinds, gone) {
      const row = state.jobs.get(id);
      const ended = gone.some((job) => job.id === id);
      const mark = row ? [row.state, row.nodes, row.attempt, state.round].join() : ended ? "ended" : seen;
      // Its steps come with the queue; all else changes with its state, its GPUs or the round.
      if (row && shown) shown.steps_done = row.steps_done;
      if (mark !== seen || (kinds.has("live") && problem)) load();
      else if (shown && !ENDED.includes(shown.state)) draw();
      seen = mark;
    },
    theme: () => lanes.picture.paint(),
    stop() {
      stopped = true;
      lanes.stop();
      log.stop();
    },
  };
}

/** How many ranks it has or had. @param {any} job @param {any[]} leases */
function ranksOf(job, leases) {
  const gpus = job.placement?.gpus ?? leases[0]?.gpus ?? [];
  return job.spec?.launch?.ranks === "per_node"
    ? new Set(gpus.map((/** @type {string} */ gpu) => gpu.split(":")[0])).size
    : gpus.length;
}

/** @param {any} job @param {import("./app.js").Context} context @param {() => void} done */
function actions(job, context, done) {
  const own = job.spec?.user === context.me.user;
  if (!own && !may(context.me.role, "operator")) return null;
  const row = { id: job.id, name: job.spec?.name, user: job.spec?.user, state: job.state };
  const button = (/** @type {string} */ action, /** @type {boolean} */ can) =>
    can &&
    h(
      "button",
      {
        type: "button",
        class: action === "cancel" ? "danger" : null,
        onclick: () => bulkCommand(action, [row]).then(done),
      },
      capital(action),
    );
  return [
    button("hold", CAN.hold(row)),
    button("release", CAN.release(row)),
    button("requeue", job.state === "running"),
    button("cancel", CAN.cancel(row)),
    job.spec?.launch && h("button", { type: "button", onclick: () => resubmit(job, context) }, "Submit again"),
  ];
}

/** @param {any} job @param {import("./app.js").Context} context */
async function resubmit(job, context) {
  const { user, ...spec } = job.spec;
  const key = crypto.randomUUID();
  const answer = await ask(
    "Submit again?",
    h(
      "p",
      null,
      `A new job with the spec of job ${job.id}${spec.launch.upload ? ", and its uploaded work directory" : ""}.`,
    ),
    {
      label: "Submit",
      submit: () =>
        call(
          "POST",
          "/v1/jobs",
          { specs: [user && user !== context.me.user ? job.spec : spec] },
          { "Idempotency-Key": key },
        ),
    },
  );
  if (!answer) return;
  notice(`Job ${answer.jobs[0]} is submitted.`);
  context.go(jobPath(answer.jobs[0]));
}

/** @param {any} job @param {[string, string][]} measured @param {number} now */
function facts(job, measured, now) {
  const { spec = {}, placement } = job;
  const gpus =
    spec.gpus_max > (spec.gpus_min ?? spec.gpus ?? 1)
      ? `${spec.gpus_min ?? spec.gpus ?? 1}–${spec.gpus_max}`
      : String(spec.gpus ?? 1);
  /** @type {[string, import("./dom.js").Child][]} */
  const pairs = [
    [
      "Runs",
      spec.launch?.command?.length
        ? h("code", null, plain(shellWords(spec.launch.command), 400))
        : spec.launch?.script
          ? h("code", null, plain(spec.launch.script, 200))
          : "",
    ],
    ["User", plain(spec.user, 60)],
    ["Tenant", plain(spec.tenant, 80)],
    ["Type", plain(spec.job_type, 80)],
    [
      "Wants",
      `${countOf(Number(spec.gpus ?? 1), "GPU").replace(/^\d+/, gpus)}${spec.worker_types?.length ? ` of ${plain(spec.worker_types.join(", "), 100)}` : ""}`,
    ],
    [
      "Has",
      placement &&
        [...new Set(placement.gpus.map((/** @type {string} */ gpu) => gpu.split(":")[0]))].map((name, at) => [
          at ? ", " : `${countOf(placement.gpus.length, placement.worker_type)} on `,
          link(nodePath(String(name)), plain(name, 60)),
        ]),
    ],
    [
      "Rate",
      placement?.rate
        ? `${number(placement.rate)} steps/s on ${placement.worker_type}, measured`
        : placement && spec.rates?.[placement.worker_type]
          ? `${number(spec.rates[placement.worker_type])} steps/s on ${placement.worker_type}, given`
          : "",
    ],
    [
      "Steps",
      job.steps_done || spec.steps
        ? `${number(job.steps_done)}${spec.steps ? ` of ${number(spec.steps)} (${percent(job.steps_done / spec.steps)})` : ""}`
        : "",
    ],
    ["Saved", job.steps_saved ? `${number(job.steps_saved)} steps are in a checkpoint` : ""],
    ...measured.map(([name, text]) => /** @type {[string, string]} */ ([capital(name), text])),
    ["Submitted", `${clock(seconds(job.submitted))}, ${ago(seconds(job.submitted), now)}`],
    ["Started", job.started ? clock(seconds(job.started)) : ""],
    ["Ended", job.ended ? `${clock(seconds(job.ended))}: ${plain(job.why, 200)}` : ""],
    [
      "Ran",
      job.run_s
        ? `${span(job.run_s)}, ${Object.entries(job.gpu_s)
            .map(([type, time]) => `${gpuHours(Number(time))} of ${type}`)
            .join(", ")}`
        : "",
    ],
    ["Cost", job.cost ? number(job.cost) : ""],
    [
      "Attempts",
      job.attempt
        ? `${job.attempt}${job.preemptions ? `, preempted ${job.preemptions}×` : ""}${job.failures ? `, failed ${job.failures}×` : ""}${job.node_failures ? `, lost a node ${job.node_failures}×` : ""}`
        : "",
    ],
    [
      "Waits for",
      job.blocked_by?.map((/** @type {string} */ other, /** @type {number} */ at) => [
        at ? ", " : "",
        link(jobPath(other), other),
      ]),
    ],
    ["Shares with", placement?.with_job ? link(jobPath(placement.with_job), placement.with_job) : ""],
    ["Exit code", job.exit_code ?? ""],
  ];
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(
        ([, value]) =>
          value !== "" && value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0),
      )
      .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
  );
}
