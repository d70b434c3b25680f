// @ts-check
// The last rounds: who had which GPU, and how each round was planned.

import { get, withQuery } from "./api.js";
import { announce, h, jobPath, link, patch } from "./dom.js";
import { Lanes, viewChoice } from "./picture.js";
import { choice, inAddress, readAgain } from "./reading.js";
import { shortTable } from "./table.js";
import { jobIndex } from "./colors.js";
import { endText, gpuLanes, leaseTable } from "./turns.js";
import { clock, countOf, number, plain, seconds, span } from "./values.js";

const ROUNDS = [20, 60, 200];
/** GPUs that the lanes of a picture show; the rest is on the pages of the nodes. */
const LANES = 96;
const LEASES = 2000;

/**
 * Which jobs got GPUs, lost them or moved with a round, from its planning to that of the next one.
 * @param {{number: number, planned: any, starts: any, policy: string}} round @param {{planned: any} | undefined} next @param {any[]} leases
 * @returns {{job: string, change: string, from: string[], to: string[], why: string}[]}
 */
export function changesOf(round, next, leases) {
  const begin = seconds(round.planned) ?? seconds(round.starts) ?? 0;
  const end = seconds(next?.planned) ?? Infinity;
  const changes = new Map();
  for (const lease of leases) {
    const ended = seconds(lease.ended);
    const left = ended !== undefined && ended >= begin && ended < end;
    const came = Number(lease.round) === Number(round.number);
    if (!left && !came) continue;
    const change = changes.get(lease.job) ?? { job: lease.job, from: [], to: [], why: "" };
    if (came) change.to.push(...lease.gpus);
    else change.from.push(...lease.gpus);
    if (left) change.why = endText(lease);
    else if (!change.why) {
      const filled = (seconds(lease.granted) ?? 0) > (seconds(round.starts) ?? 0);
      change.why = filled ? "the GPUs were idle" : round.policy ? `its turn, by ${plain(round.policy, 60)}` : "its turn";
    }
    changes.set(lease.job, change);
  }
  return [...changes.values()]
    .map((change) => ({
      ...change,
      change: change.from.length && change.to.length ? "moved" : change.from.length ? "ended" : "began",
    }))
    .sort((a, b) => a.change.localeCompare(b.change) || a.job.localeCompare(b.job, "en", { numeric: true }));
}

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function rounds(context) {
  let count = inAddress("last", String(ROUNDS[0]));
  let view = inAddress("view", "picture");
  let chosen = inAddress("round", "");
  /** @type {any[] | null} */
  let listed = null;
  /** @type {any[]} */
  let leases = [];
  // Turns that ended by then are left out; 0 if none are.
  let cut = 0;
  let problem = "";
  const lanes = new Lanes(
    "Turns of jobs on all GPUs over the last rounds. The table beside it has the same.",
    (round) => choose({ chosen: round }),
    (at) => listed?.find((one) => (seconds(one.starts) ?? Infinity) <= at)?.number.toString(),
  );
  const node = h("div");

  async function load() {
    try {
      listed = (await get("/v1/rounds", { page_size: Number(count) || ROUNDS[0] })).rounds;
      const first = listed?.at(-1);
      const turns = first ? await get("/v1/leases", { since: first.starts, page_size: LEASES }) : { leases: [] };
      leases = turns.leases;
      cut = turns.next_page_token ? (seconds(leases.at(-1).ended) ?? 0) : 0;
      problem = "";
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    draw();
  }

  const choose = (/** @type {{count?: string, view?: string, chosen?: string}} */ change) => {
    ({ count = count, view = view, chosen = chosen } = change);
    const last = count === String(ROUNDS[0]) ? "" : count;
    context.go(withQuery("/rounds", { last, view: view === "table" ? view : "", round: chosen }), true);
    if (change.chosen) announce(`What changed in round ${chosen} stands above the list of rounds.`);
    if (change.count) load();
    else draw();
  };

  function draw() {
    const now = Date.now() / 1000;
    const every = gpuLanes(leases, now);
    const at = (listed ?? []).findIndex((one) => String(one.number) === chosen);
    const round = listed?.[at];
    if (listed?.length) {
      const to = Math.max(seconds(listed[0].ends) ?? now, now);
      lanes.show(
        every.slice(0, LANES),
        seconds(listed.at(-1).starts) ?? now,
        to,
        listed.map((one) => seconds(one.starts) ?? 0),
        round ? [seconds(round.starts) ?? 0, seconds(round.ends) ?? 0] : null,
      );
    }
    patch(
      node,
      h("h1", { class: "unseen" }, "Rounds"),
      h(
        "div",
        { class: "head" },
        h("h2", null, "Who had which GPU"),
        every.length > LANES && h("span", { class: "small muted" }, `${LANES} of ${countOf(every.length, "GPU")}`),
        cut > 0 &&
          h("span", { class: "small muted" }, `the latest ${countOf(LEASES, "turn")}, which ended after ${clock(cut)}`),
        h(
          "div",
          { class: "push tools" },
          choice(
            "How many rounds",
            ROUNDS.map((one) => [String(one), `${one} rounds`]),
            count,
            (value) => choose({ count: value }),
          ),
          viewChoice(view, (name) => choose({ view: name })),
        ),
      ),
      problem && h("p", { class: "problem" }, problem),
      !listed
        ? h("p", { class: "empty", key: "loading" }, "Reading the rounds …")
        : every.length === 0
          ? h("p", { class: "empty", key: "none" }, "No job has had a turn in these rounds.")
          : view === "table"
            ? h("div", { key: "twin" }, leaseTable(leases, now, true))
            : lanes.node,
      round && roundSection(round, listed?.[at - 1], leases, cut, () => choose({ chosen: "" })),
      listed &&
        h(
          "section",
          { key: "rounds", "aria-label": "Rounds" },
          h("div", { class: "head" }, h("h2", null, "Rounds")),
          shortTable(
            "Rounds",
            [
              {
                head: "Round",
                class: "number",
                cell: (one) =>
                  h(
                    "button",
                    {
                      type: "button",
                      class: "why",
                      "aria-pressed": String(one === round),
                      "aria-label": `What changed in round ${one.number}`,
                      onclick: () => choose({ chosen: one === round ? "" : String(one.number) }),
                    },
                    one.number.toLocaleString("en"),
                  ),
              },
              { head: "Starts", cell: (one) => clock(seconds(one.starts)) },
              {
                head: "Length",
                class: "number",
                cell: (one) => span((seconds(one.ends) ?? 0) - (seconds(one.starts) ?? 0)),
              },
              { head: "New", class: "number", cell: (one) => one.granted },
              { head: "Renewed", class: "number", cell: (one) => one.renewed },
              { head: "Ended", class: "number", cell: (one) => one.ended },
              { head: "Skipped", class: "number", cell: (one) => one.skipped },
              {
                head: "Solved in",
                class: "number",
                cell: (one) =>
                  one.solve_s === undefined
                    ? ""
                    : one.solve_s < 1
                      ? `${number(one.solve_s * 1000)} ms`
                      : `${number(one.solve_s)} s`,
              },
              {
                head: "Policy",
                cell: (one) =>
                  one.failed
                    ? h("span", { class: "problem" }, `${plain(one.policy, 60)} failed: ${plain(one.failed, 200)}`)
                    : plain(one.policy, 80),
              },
            ],
            listed,
            {
              key: (one) => String(one.number),
              empty: "There was no round yet.",
              classOf: (one) => (one === round ? "chosen" : ""),
            },
          ),
        ),
    );
    if (view === "picture") lanes.picture.paint();
  }

  return readAgain(context, "Rounds", load, node, { theme: () => lanes.picture.paint(), stop: () => lanes.stop() });
}

/**
 * What changed with a round, and why.
 * @param {any} round @param {any} next @param {any[]} leases @param {number} cut  turns that ended by then are not in `leases`
 * @param {() => void} close
 */
function roundSection(round, next, leases, cut, close) {
  const gpus = (/** @type {string[]} */ names) => plain(names.join(", "), 120);
  return h(
    "section",
    { key: "changes", "aria-label": `What changed in round ${round.number}` },
    h(
      "div",
      { class: "head" },
      h("h2", null, `Round ${round.number.toLocaleString("en")}`),
      h(
        "span",
        { class: "muted" },
        `planned ${clock(seconds(round.planned))}: ${round.granted} new, ${round.renewed} renewed, ${round.ended} ended`,
      ),
      h("button", { type: "button", class: "push", onclick: close }, "Close"),
    ),
    (seconds(round.planned) ?? 0) < cut &&
      h("p", { class: "small muted" }, `Turns that ended by ${clock(cut)} are not here; gavel leases lists them.`),
    shortTable(
      `What changed in round ${round.number}`,
      [
        {
          head: "Job",
          cell: (one) => link(jobPath(one.job), h("i", { class: `swatch c${jobIndex(one.job)}` }), one.job),
        },
        { head: "Change", cell: (one) => one.change },
        { head: "From", optional: true, cell: (one) => gpus(one.from) },
        { head: "To", optional: true, cell: (one) => gpus(one.to) },
        { head: "Why", cell: (one) => one.why },
      ],
      changesOf(round, next, leases),
      { key: (one) => one.job, empty: "All jobs stayed where they were." },
    ),
  );
}
