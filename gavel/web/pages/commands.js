// @ts-check
// What users do to jobs: submit, ask why, hold, release, requeue, cancel. Each shows first what it concerns.

import { call, commandJobs, get, jobUrl } from "./api.js";
import { ask, h, jobPath, notice } from "./dom.js";
import { expected, linked, remedies, ways } from "./explanation.js";
import { capital, countOf, plain } from "./values.js";

/** States in which a job stays. */
export const ENDED = ["completed", "failed", "cancelled"];

/** Which jobs a command makes sense for. @type {Record<string, (job: Record<string, any>) => boolean>} */
export const CAN = {
  hold: (job) => ["queued", "running", "preempted"].includes(job.state),
  release: (job) => job.state === "held",
  cancel: (job) => !ENDED.includes(job.state),
};

/**
 * Show why a job waits, who is ahead, and when it may start.
 * @param {string} id @param {import("./app.js").Context} context
 */
export async function explain(id, context) {
  const explanation = await get(`${jobUrl(id)}:explain`);
  const ahead = explanation.details?.others ?? [];
  await ask(
    `Why does job ${id} wait?`,
    h(
      "div",
      null,
      h("p", null, linked(explanation.text, ahead)),
      explanation.expected_start && h("p", { class: "muted" }, expected(explanation, Date.now() / 1000)),
      ways(explanation),
      remedies(explanation),
    ),
    { label: `Open job ${id}`, wide: true, submit: () => true },
  ).then((open) => open && context.go(jobPath(id)));
}

/**
 * Ask, with the list of all jobs that it concerns, then send a command for each.
 * @param {string} action @param {any[]} jobs
 */
export async function bulkCommand(action, jobs) {
  const what = `${capital(action)} ${countOf(jobs.length, "job")}`;
  const meaning = {
    cancel: "They end for good.",
    hold: "They save, give up their GPUs, and wait until they are released.",
    release: "They go back into the queue.",
    requeue: "They save, stop, and go back into the queue.",
  }[action];
  const result = await ask(
    `${what}?`,
    h(
      "div",
      null,
      h("p", null, meaning),
      h(
        "ul",
        { class: "list", tabindex: "0", "aria-label": "The jobs that it concerns" },
        jobs.map((job) =>
          h(
            "li",
            null,
            h("b", null, job.id),
            h("span", null, plain(job.name, 60)),
            h("span", { class: "muted" }, plain(job.user, 40), ` · ${job.state}`),
          ),
        ),
      ),
    ),
    {
      label: what,
      danger: action === "cancel",
      submit: () =>
        commandJobs(
          jobs.map((job) => job.id),
          action,
        ),
    },
  );
  if (!result) return null;
  const done = { cancel: "cancelled", hold: "held", release: "released", requeue: "requeued" }[action];
  if (result.done) notice(`${countOf(result.done, "job")} ${done}.`);
  for (const one of result.refused.slice(0, 3)) notice(`Job ${one.job}: ${one.why}`, "failed");
  if (result.refused.length > 3) notice(`${countOf(result.refused.length - 3, "more job")} refused.`, "failed");
  return result;
}

const EXAMPLE = `name: hello
command: [python3, -c, 'print("hello")']
gpus: 1
`;

/**
 * Submit a job from a file, or from text.
 * @param {import("./app.js").Context} context @param {string} [text]
 */
export async function submit(context, text = EXAMPLE) {
  // The key stays while the text does, so that a submission whose answer was lost is not repeated.
  let key = crypto.randomUUID();
  const area = h("textarea", {
    name: "job",
    "aria-label": "Job file",
    spellcheck: "false",
    value: text,
    oninput: () => {
      key = crypto.randomUUID();
      preview.replaceChildren();
    },
  });
  const preview = h("pre", { role: "status", class: "small" });
  const file = h("input", {
    type: "file",
    accept: ".yaml,.yml,.json",
    "aria-label": "Job file",
    onchange: async () => {
      const [chosen] = file.files;
      if (!chosen) return;
      if (chosen.size > 1 << 20)
        return void (preview.textContent = `${chosen.name} has ${chosen.size.toLocaleString("en")} bytes; a job file has at most 1 MiB.`);
      area.value = await chosen.text();
      area.oninput();
    },
  });
  const check = async () => {
    try {
      const { previews } = await call("POST", "/v1/jobs:preview", area.value);
      preview.textContent = previews
        .map((/** @type {any} */ one) => one.text || `${one.refused_field}: ${one.refused_why}`)
        .join("\n\n");
    } catch (error) {
      preview.textContent = /** @type {Error} */ (error).message;
    }
  };
  const answer = await ask(
    "Submit a job",
    h(
      "div",
      { class: "tools" },
      file,
      h("button", { type: "button", onclick: check }, "What would happen?"),
      area,
      preview,
    ),
    { label: "Submit", wide: true, submit: () => call("POST", "/v1/jobs", area.value, { "Idempotency-Key": key }) },
  );
  if (!answer) return;
  const [first] = answer.jobs;
  notice(
    answer.jobs.length === 1 ? `Job ${first} is submitted.` : `${countOf(answer.jobs.length, "job")} are submitted.`,
  );
  context.go(answer.jobs.length === 1 ? jobPath(first) : "/queue");
}
