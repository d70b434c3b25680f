// @ts-check
// A job's spec as the job file that would submit it again: docs/job-file.md lists the fields. Pure.

const SPAN = (/** @type {number} */ seconds) => `${seconds}s`;
const GB = (/** @type {number} */ size) => `${size}GB`;

/** What holds without a word. @type {Record<string, any>} */
const STANDARD = {
  gpus_together: 1,
  weight: 1,
  preemptible: true,
  packable: true,
  reports_steps: true,
  ranks: "per_gpu",
  checkpoints: "per_job",
};

/** Fields of JobSpec, in the order of the page; with another name or form, as in a job file. @type {[string, string?, ((value: any) => any)?][]} */
const FIELDS = [
  ["name"],
  ["job_type"],
  ["gpus"],
  ["gpus_together"],
  ["cpus"],
  ["memory_gb", "memory", GB],
  ["gpu_memory_gb", "gpu_memory", GB],
  ["worker_types"],
  ["excluded_worker_types", "exclude_worker_types"],
  ["nodes"],
  ["labels"],
  ["rates"],
  ["steps"],
  ["reports_steps"],
  ["weight"],
  ["tenant"],
  ["deadline_s", "deadline", SPAN],
  ["earliest_start_s", "start", SPAN],
  ["time_limit_s", "time_limit", SPAN],
  ["min_run_s", "min_run", SPAN],
  ["max_cost"],
  ["preemptible"],
  ["packable"],
  ["restart_cost_s", "restart_cost", SPAN],
  ["retries"],
  ["retries_node"],
  ["retries_preemption"],
  [
    "after",
    "after",
    (list) => list.map((/** @type {any} */ one) => (one.when === "ended" ? `${one.job}:ended` : one.job)),
  ],
];

/** Fields of Launch. @type {[string, string?, ((value: any) => any)?][]} */
const LAUNCH = [
  ["command"],
  ["script"],
  ["setup"],
  ["setup_limit_s", "setup_limit", SPAN],
  ["venv"],
  ["container"],
  ["workdir"],
  ["outputs"],
  ["env"],
  ["env_from"],
  ["checkpoint_dir"],
  ["ranks"],
  ["checkpoints"],
];

/** @param {Record<string, any>} spec  a JobSpec */
export function jobFile(spec) {
  const launch = spec.launch ?? {};
  const lines = [
    ...LAUNCH.flatMap((field) => entry(launch, field)),
    ...FIELDS.flatMap((field) => entry(spec, field)),
  ];
  if (spec.gpus_max > (spec.gpus ?? 1) || spec.gpus_min < (spec.gpus ?? 1)) {
    const at = lines.findIndex((line) => line.startsWith("gpus:"));
    lines.splice(at, at < 0 ? 0 : 1, `gpus: ${spec.gpus_min ?? spec.gpus ?? 1}-${spec.gpus_max ?? spec.gpus ?? 1}`);
  }
  if (launch.upload) lines.unshift(`# Its work directory was uploaded as ${launch.upload}.`);
  if (spec.plans?.length) lines.unshift(`# It has ${spec.plans.length} plans, which gavel show --json prints.`);
  return `${lines.join("\n")}\n`;
}

/** @param {Record<string, any>} values @param {[string, string?, ((value: any) => any)?]} field @returns {string[]} */
function entry(values, [field, name, form]) {
  const value = values[field];
  // Values that the scheduler assumes anyway say nothing.
  if (
    value === undefined ||
    value === null ||
    value === "" ||
    value === 0 ||
    value === STANDARD[field] ||
    (typeof value === "object" && Object.keys(value).length === 0)
  )
    return [];
  return written(name ?? field, form ? form(value) : value);
}

/** @param {string} name @param {any} value @returns {string[]} */
function written(name, value) {
  if (
    typeof value === "string" &&
    /\n/.test(value) &&
    /^[\x20-\x7e\n\u00a0-\uffff]*$/.test(value) &&
    !/^\s/.test(value)
  ) {
    return [
      `${name}: |${value.endsWith("\n") ? "" : "-"}`,
      ...value
        .replace(/\n$/, "")
        .split("\n")
        .map((line) => (line ? `  ${line}` : "")),
    ];
  }
  return [`${name}: ${flow(value)}`];
}

/** @param {any} value @returns {string} */
function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (value && typeof value === "object") {
    const kept = Object.entries(value).filter(
      ([, one]) => one !== "" && !(one && typeof one === "object" && Object.keys(one).length === 0),
    );
    return `{${kept.map(([key, one]) => `${flow(key)}: ${flow(one)}`).join(", ")}}`;
  }
  if (typeof value !== "string") return String(value);
  // Words that YAML reads as numbers, booleans or null, and everything unusual, are quoted; JSON's quotes are YAML's.
  return /^[A-Za-z_/][\w./@+-]*$/.test(value) && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(value)
    ? value
    : JSON.stringify(value);
}
