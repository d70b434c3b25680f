// @ts-check
// Why a job waits or runs: the scheduler's explanation, with links to the jobs that it names.

import { h, jobPath, link } from "./dom.js";
import { shortTable } from "./table.js";
import { ago, clock, number, percent, plain, seconds, span } from "./values.js";

/**
 * Text whose job numbers are links; the numbers come with the explanation.
 * @param {string} text @param {string[]} jobs
 */
export function linked(text, jobs) {
  const known = new Set(jobs);
  return plain(text, 1000)
    .split(/(\b\d+(?:_\d+)?\b)/)
    .map((part, at) => (at % 2 && known.has(part) ? link(jobPath(part), part) : part));
}

/** @param {any} explanation @param {number} now */
export function expected(explanation, now) {
  const at = seconds(explanation.expected_start);
  const sure = explanation.details?.start_sure;
  return `Expected start: ${ago(at, now)}, at ${clock(at)}${sure && sure !== "unknown" ? ` (${sure})` : ""}`;
}

/** Text in which commands stand between backticks. @param {string} text */
const withCommands = (text) =>
  text.split(/`([^`]*)`/).map((part, at) => (at % 2 ? h("code", null, part) : part));

/** What would change its state. @param {any} explanation */
export function remedies({ details }) {
  const changes = details?.would_change ?? [];
  if (changes.length === 0) return null;
  return h(
    "section",
    { key: "remedies", "aria-label": "What would change it" },
    h("div", { class: "head" }, h("h2", null, "What would change it")),
    h(
      "ul",
      { class: "remedies" },
      changes.map((/** @type {any} */ one) => h("li", null, withCommands(plain(one.text, 400)))),
    ),
  );
}

/** The evidence: each way to run it, and who holds the GPUs. @param {any} explanation */
export function ways({ details }) {
  const evidence = details?.evidence ?? [];
  if (evidence.length === 0) return null;
  return h(
    "section",
    { key: "ways", "aria-label": "Ways to run it" },
    h("div", { class: "head" }, h("h2", null, "Ways to run it")),
    shortTable(
      "Ways to run it",
      [
        { head: "Type", cell: (way) => way.worker_type },
        { head: "GPUs", class: "number", cell: (way) => way.gpus },
        {
          head: "Steps/s",
          class: "number",
          cell: (way) => (way.rate ? number(way.rate) : way.steps_per_s ? number(way.steps_per_s) : ""),
        },
        { head: "Share", class: "number", cell: (way) => (way.share === undefined ? "" : percent(way.share)) },
        { head: "Due", class: "number", cell: (way) => span(way.entitled_s ?? 0) },
        { head: "Received", class: "number", cell: (way) => span(way.received_s ?? 0) },
        { head: "Free", class: "number", cell: (way) => `${way.gpus_free ?? 0}/${way.gpus_total ?? 0}` },
        {
          head: "Held by",
          cell: (way) =>
            (way.held_by ?? []).map((/** @type {any} */ one, /** @type {number} */ at) => [
              at ? ", " : "",
              link(jobPath(one.job), one.job),
            ]),
        },
      ],
      evidence,
    ),
  );
}
