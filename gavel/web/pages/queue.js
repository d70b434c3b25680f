// @ts-check
// The queue: every unfinished job, in the order of submission, with filters in the address and commands for many at once.

import { get, withQuery } from "./api.js";
import { CAN, ENDED, bulkCommand, explain, submit } from "./commands.js";
import { announce, h, jobPath, link, notice, patch } from "./dom.js";
import { WindowedTable } from "./table.js";
import { capital, clock, countOf, number, percent, plain, seconds, span } from "./values.js";

const STATES = ["running", "queued", "preempted", "held"];
/** Ended jobs are read in one page, those that ended last. */
const ENDED_MOST = 500;

/**
 * Does this job match the filter? Words of `text` may stand in id, name, user, tenant, type or node.
 * @param {Record<string, any>} job @param {{text: string, states: string[]}} filter
 */
export function matches(job, { text, states }) {
  if (states.length && !states.includes(job.state)) return false;
  if (!text) return true;
  const all = [job.id, job.name, job.user, job.tenant, job.job_type, job.worker_type, job.nodes]
    .join("\n")
    .toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((part) => {
      const [field, value] = part.split(/:(.*)/s);
      return value !== undefined && field in job ? String(job[field]).toLowerCase() === value : all.includes(part);
    });
}

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function queue(context) {
  const address = new URLSearchParams(location.search);
  const filter = { text: address.get("q") ?? "", states: (address.get("state") ?? "").split(",").filter(Boolean) };
  let ended = filter.states.some((state) => ENDED.includes(state));
  /** @type {Set<string>} */
  const chosen = new Set();
  /** @type {any[]} */
  let shown = [];
  /** @type {any[]} */
  let past = [];
  /** @type {Map<string, number>} */
  let places = new Map();

  const search = h("input", {
    type: "search",
    placeholder: "Name, user, tenant, node …",
    "aria-label": "Search the queue",
    value: filter.text,
    spellcheck: "false",
    oninput: () => {
      filter.text = search.value.trim();
      changed();
    },
  });
  const all = h("input", {
    type: "checkbox",
    "aria-label": "Choose all listed jobs",
    onchange: () => {
      chosen.clear();
      if (all.checked) for (const job of shown) chosen.add(job.id);
      draw();
    },
  });
  const table = new WindowedTable(
    "Jobs",
    columnsOf(context, chosen, draw, () => places),
    {
      key: (job) => job.id,
      classOf: (job) => (chosen.has(job.id) ? "chosen" : ""),
    },
  );
  table.node.querySelector("th")?.replaceChildren(all);
  const tools = h("div", { class: "head" });
  const bulk = h("div");
  const node = h("div", null, h("h1", { class: "unseen" }, "Queue"), tools, bulk, table.node);

  function changed() {
    const states = filter.states.join(",");
    context.go(withQuery("/queue", { q: filter.text, state: states }).replace("%2C", ","), true);
    table.node.scrollTop = 0;
    draw();
    announce(countOf(shown.length, "job"));
  }

  /** @param {string} state */
  function turnState(state) {
    filter.states = filter.states.includes(state)
      ? filter.states.filter((one) => one !== state)
      : [...filter.states.filter((one) => !ENDED.includes(one)), state];
    ended = false;
    changed();
  }

  async function turnEnded() {
    ended = !ended;
    filter.states = ended ? [...ENDED] : [];
    if (ended) await loadPast();
    changed();
  }

  async function loadPast() {
    const page = await get("/v1/jobs", { ended: true, page_size: ENDED_MOST, brief: true });
    past = page.jobs.map(rowOf);
  }

  function draw() {
    const { jobs, overview, loaded, staleWhy } = context.live.state;
    const present = [...jobs.values()];
    if (!ended) places = placesOf(present);
    shown = (ended ? past : present).filter((job) => matches(job, filter));
    if (!ended)
      shown
        .reverse()
        .sort((a, b) => ORDER[a.state] - ORDER[b.state] || (places.get(a.id) ?? 0) - (places.get(b.id) ?? 0));
    for (const id of chosen) if (ended || !jobs.has(id)) chosen.delete(id);
    const counts = overview?.jobs ?? {};
    patch(
      tools,
      search,
      h(
        "div",
        { class: "choice", role: "group", "aria-label": "State" },
        STATES.map((state) =>
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(filter.states.includes(state)),
              onclick: () => turnState(state),
            },
            state,
            h("span", { class: "small muted wide-only" }, String((counts[state] ?? 0).toLocaleString("en"))),
          ),
        ),
        h(
          "button",
          { type: "button", "aria-pressed": String(ended), onclick: () => turnEnded().catch(failed) },
          "ended",
        ),
      ),
      h(
        "span",
        { class: "muted small" },
        countOf(shown.length, "job"),
        ended && past.length === ENDED_MOST ? ", those that ended last" : "",
      ),
      h("button", { type: "button", class: "push primary", onclick: () => submit(context) }, "Submit"),
    );
    patch(
      bulk,
      chosen.size > 0 &&
        h(
          "div",
          { class: "bulk", role: "group", "aria-label": "Chosen jobs" },
          h("b", null, `${countOf(chosen.size, "job")} chosen`),
          ["hold", "release", "cancel"].map((action) => {
            const concerned = shown.filter((job) => chosen.has(job.id) && CAN[action](job));
            return h(
              "button",
              {
                type: "button",
                disabled: concerned.length === 0,
                class: action === "cancel" ? "danger" : null,
                onclick: () => command(action, concerned),
              },
              `${capital(action)} ${concerned.length.toLocaleString("en")}`,
            );
          }),
          h("button", { type: "button", class: "plain", onclick: () => (chosen.clear(), draw()) }, "Clear"),
        ),
    );
    all.disabled = ended || shown.length === 0;
    all.checked = shown.length > 0 && chosen.size === shown.length;
    all.indeterminate = chosen.size > 0 && chosen.size < shown.length;
    table.show(
      shown,
      !loaded
        ? staleWhy || "Reading the queue …"
        : present.length || ended
          ? "No job matches."
          : "No job waits or runs. Submit one here, or by gavel submit.",
    );
  }

  /** @param {string} action @param {any[]} jobs */
  async function command(action, jobs) {
    const result = await bulkCommand(action, jobs);
    if (result) chosen.clear();
    draw();
  }

  if (address.has("submit")) submit(context);
  if (ended) loadPast().then(draw, failed);
  return {
    node,
    title: "Queue",
    update(state, kinds, gone) {
      if (ended && gone.length) loadPast().then(draw, failed);
      else draw();
      if (kinds.has("page") && address.has("focus")) search.focus();
    },
    keys: { "/": () => search.focus(), s: () => submit(context) },
    stop: () => table.stop(),
  };
}

/** Running jobs first, then those that wait, then those that are held. @type {Record<string, number>} */
const ORDER = { running: 0, queued: 1, preempted: 1, held: 2 };

/**
 * The place of each waiting job, by its submission. Whose turn is next, the policy decides; `explain` says who is ahead.
 * @param {any[]} jobs
 */
export function placesOf(jobs) {
  const waits = jobs
    .filter((job) => job.state === "queued" || job.state === "preempted")
    .sort((a, b) => a.submitted - b.submitted);
  return new Map(waits.map((job, at) => [job.id, at + 1]));
}

/** @param {any} error */
const failed = (error) => notice(error.message, "failed");

/**
 * A job of the protocol as a row of the queue.
 * @param {any} job
 */
export function rowOf(job) {
  const spec = job.spec ?? {};
  const placement = job.placement;
  return {
    id: job.id,
    name: spec.name,
    user: spec.user,
    tenant: spec.tenant,
    job_type: spec.job_type,
    state: job.state,
    why: job.why,
    gpus: spec.gpus ?? 1,
    worker_type: placement?.worker_type ?? Object.keys(job.gpu_s ?? {}).join(","),
    nodes: (job.nodes ?? []).join(","),
    submitted: seconds(job.submitted) ?? 0,
    started: seconds(job.started) ?? 0,
    ended: seconds(job.ended) ?? 0,
    steps: spec.steps ?? 0,
    steps_done: job.steps_done,
    cost: job.cost,
    run_s: job.run_s,
    gpu_s: job.gpu_s,
  };
}

/** @param {import("./app.js").Context} context @param {Set<string>} chosen @param {() => void} redraw @param {() => Map<string, number>} places */
function columnsOf(context, chosen, redraw, places) {
  const now = () => Date.now() / 1000;
  /** @type {import("./table.js").Column<any>[]} */
  const columns = [
    {
      head: "",
      width: "32px",
      cell: (job) =>
        h("input", {
          type: "checkbox",
          "aria-label": `Choose job ${job.id}`,
          checked: chosen.has(job.id),
          disabled: ENDED.includes(job.state),
          onchange: () => {
            if (!chosen.delete(job.id)) chosen.add(job.id);
            redraw();
          },
        }),
    },
    { head: "Id", width: "88px", narrow: "64px", cell: (job) => link(jobPath(job.id), job.id) },
    { head: "Name", width: "18%", narrow: "72px", cell: (job) => plain(job.name, 80) },
    { head: "User", width: "96px", class: "wide-only", cell: (job) => plain(job.user, 40) },
    { head: "Tenant", width: "168px", class: "wide-only", cell: (job) => plain(job.tenant, 60) },
    { head: "State", width: "112px", narrow: "104px", cell: (job) => h("span", { class: `state ${job.state}` }, job.state) },
    { head: "Place", width: "56px", class: "number wide-only", cell: (job) => places().get(job.id) ?? "" },
    {
      head: "GPUs",
      width: "96px",
      class: "wide-only",
      cell: (job) => `${job.gpus}${job.worker_type ? ` ${plain(job.worker_type, 16)}` : ""}`,
    },
    {
      head: "Done",
      width: "64px",
      class: "number wide-only",
      cell: (job) =>
        job.steps > 0
          ? percent(Math.min(1, job.steps_done / job.steps))
          : job.steps_done > 0
            ? number(job.steps_done)
            : "",
    },
    {
      head: "For",
      width: "64px",
      class: "number wide-only",
      cell: (job) => span((job.ended || now()) - (job.since || job.submitted)),
    },
    {
      head: "Where, why",
      title: (job) => plain(job.why, 400),
      cell: (job) => {
        if (job.state === "running") return plain(job.nodes, 60);
        if (ENDED.includes(job.state)) return [clock(job.ended), plain(job.why, 120)].filter(Boolean).join(": ");
        return [
          h(
            "button",
            {
              type: "button",
              class: "why",
              "aria-label": `Why does job ${job.id} wait?`,
              onclick: () => explain(job.id, context).catch(failed),
            },
            "Why?",
          ),
          plain(job.why, 120),
        ];
      },
    },
  ];
  return columns;
}
