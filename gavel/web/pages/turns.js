// @ts-check
// Turns of jobs on GPUs over time, as lanes and as a table.

import { jobIndex, typeIndex } from "./colors.js";
import { h, jobPath, link } from "./dom.js";
import { shortTable } from "./table.js";
import { clock, number, plain, seconds, span } from "./values.js";

/** How a turn ended, and why. @param {any} lease @param {number} [limit] */
export const endText = (lease, limit = 200) =>
  lease.outcome ? [lease.outcome, plain(lease.why, limit)].filter(Boolean).join(": ") : "it runs";

/** Beyond this many GPUs, the lanes of a job are nodes. */
const LANES = 32;

/**
 * A lane for each GPU; the gap after a turn says why it ended.
 * @param {any[]} leases  the latest first @param {string[]} types @param {number} now
 * @returns {import("./picture.js").Lane[]}
 */
export function lanesOf(leases, types, now) {
  const gpus = new Set(leases.flatMap((lease) => lease.gpus));
  const nameOf = (/** @type {string} */ gpu) => (gpus.size > LANES ? gpu.split(":")[0] : gpu);
  /** @type {Map<string, import("./picture.js").Lane>} */
  const lanes = new Map();
  const inTurn = [...leases].reverse();
  inTurn.forEach((lease) => {
    const [start, end] = [seconds(lease.started) ?? seconds(lease.granted) ?? now, seconds(lease.ended) ?? now];
    const tip = [
      `Attempt ${lease.attempt} on ${lease.worker_type}, round ${lease.round}`,
      `${clock(start)} – ${lease.ended ? clock(end) : "now"}, ${span(end - start)}`,
      lease.steps_made ? `${number(lease.steps_made)} steps` : "",
      endText(lease),
    ]
      .filter(Boolean)
      .join("\n");
    for (const name of new Set(lease.gpus.map(nameOf))) {
      const lane = lanes.get(String(name)) ?? { name: String(name), blocks: [], notes: [] };
      lane.blocks.push({
        start,
        end,
        label: `${lease.steps_made ? `${number(lease.steps_made)} steps` : span(end - start)}`,
        color: typeIndex(lease.worker_type, types),
        tip,
        open: !lease.ended,
        faint: lease.outcome === "dropped",
      });
      lanes.set(String(name), lane);
    }
    const lane = lanes.get(nameOf(lease.gpus[0] ?? ""));
    if (lease.ended && lease.why) lane?.notes?.push({ at: end, until: now, text: lease.why });
  });
  // What a gap is called has room until the next turn on the same GPU.
  for (const { blocks, notes } of lanes.values())
    for (const note of notes ?? [])
      note.until = Math.min(now, ...blocks.map((block) => block.start).filter((start) => start >= note.at));
  return [...lanes.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
}

/** @param {any[]} leases @param {number} now @param {boolean} [withJob] */
export function leaseTable(leases, now, withJob = false) {
  return shortTable(
    "Turns",
    [
      ...(withJob
        ? [
            {
              head: "Job",
              cell: (/** @type {any} */ lease) =>
                link(jobPath(lease.job), h("i", { class: `swatch c${jobIndex(lease.job)}` }), lease.job),
            },
          ]
        : []),
      { head: "Attempt", class: "number", cell: (lease) => lease.attempt },
      { head: "Round", class: "number", cell: (lease) => lease.round },
      { head: "GPUs", cell: (lease) => `${lease.worker_type} ${plain(lease.gpus.join(", "), 60)}` },
      { head: "From", cell: (lease) => clock(seconds(lease.started) ?? seconds(lease.granted)) },
      {
        head: "For",
        class: "number",
        cell: (lease) =>
          span((seconds(lease.ended) ?? now) - (seconds(lease.started) ?? seconds(lease.granted) ?? now)),
      },
      { head: "Steps", class: "number", optional: true, cell: (lease) => number(lease.steps_made ?? null) },
      { head: "Ended", cell: (lease) => endText(lease, 120) },
    ],
    leases,
    { key: (lease) => lease.lease },
  );
}

/**
 * A lane for each GPU, with the turns of all jobs on it, coloured by job.
 * @param {any[]} leases @param {number} now @param {(gpu: string) => boolean} [wanted]
 * @returns {import("./picture.js").Lane[]}
 */
export function gpuLanes(leases, now, wanted = () => true) {
  /** @type {Map<string, import("./picture.js").Lane>} */
  const lanes = new Map();
  for (const lease of leases) {
    const [start, end] = [seconds(lease.started) ?? seconds(lease.granted) ?? now, seconds(lease.ended) ?? now];
    for (const gpu of lease.gpus.filter(wanted)) {
      /** @type {import("./picture.js").Lane} */
      const lane = lanes.get(gpu) ?? { name: gpu, blocks: [] };
      lane.blocks.push({
        start,
        end,
        label: lease.job,
        color: jobIndex(lease.job),
        href: jobPath(lease.job),
        open: !lease.ended,
        tip: [
          `Job ${lease.job} on ${gpu} (${lease.worker_type})`,
          `${clock(start)} – ${lease.ended ? clock(end) : "now"}, ${span(end - start)}`,
          endText(lease),
        ].join("\n"),
      });
      lanes.set(gpu, lane);
    }
  }
  return [...lanes.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
}
