// @ts-check
// The last rounds: who had which GPU, and how each round was planned.

import { get, withQuery } from "./api.js";
import { h, patch } from "./dom.js";
import { Lanes, viewChoice } from "./picture.js";
import { choice, inAddress, readAgain } from "./reading.js";
import { shortTable } from "./table.js";
import { gpuLanes, leaseTable } from "./turns.js";
import { clock, countOf, number, plain, seconds, span } from "./values.js";

const ROUNDS = [20, 60, 200];
/** GPUs that the lanes of a picture show; the rest is on the pages of the nodes. */
const LANES = 96;
const LEASES = 2000;

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function rounds(context) {
  let count = inAddress("last", String(ROUNDS[0]));
  let view = inAddress("view", "picture");
  /** @type {any[] | null} */
  let listed = null;
  /** @type {any[]} */
  let leases = [];
  let problem = "";
  const lanes = new Lanes(
    "Turns of jobs on all GPUs over the last rounds. The table beside it has the same.",
    context.go,
  );
  const node = h("div");

  async function load() {
    try {
      listed = (await get("/v1/rounds", { page_size: Number(count) || ROUNDS[0] })).rounds;
      const first = listed?.at(-1);
      leases = first ? (await get("/v1/leases", { since: first.starts, page_size: LEASES })).leases : [];
      problem = "";
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    draw();
  }

  const choose = (/** @type {{count?: string, view?: string}} */ change) => {
    [count, view] = [change.count ?? count, change.view ?? view];
    context.go(
      withQuery("/rounds", { last: count === String(ROUNDS[0]) ? "" : count, view: view === "table" ? view : "" }),
      true,
    );
    load();
  };

  function draw() {
    const now = Date.now() / 1000;
    const every = gpuLanes(leases, now);
    if (listed?.length) {
      const to = Math.max(seconds(listed[0].ends) ?? now, now);
      lanes.show(
        every.slice(0, LANES),
        seconds(listed.at(-1).starts) ?? now,
        to,
        listed.map((one) => ({ at: seconds(one.starts) ?? 0, label: String(one.number) })),
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
      listed &&
        h(
          "section",
          { key: "rounds", "aria-label": "Rounds" },
          h("div", { class: "head" }, h("h2", null, "Rounds")),
          shortTable(
            "Rounds",
            [
              { head: "Round", class: "number", cell: (one) => one.number.toLocaleString("en") },
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
            { key: (one) => String(one.number), empty: "There was no round yet." },
          ),
        ),
    );
    if (view === "picture") lanes.picture.paint();
  }

  return readAgain(context, "Rounds", load, node, { theme: () => lanes.picture.paint(), stop: () => lanes.stop() });
}
