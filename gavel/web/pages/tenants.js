// @ts-check
// Tenants with their weights, quotas and budgets, what is used of these, and the dialogs that change them.

import { call, may } from "./api.js";
import { ask, h, notice } from "./dom.js";
import { shortTable } from "./table.js";
import { number, percent, plain } from "./values.js";

const PERIODS = ["day", "week", "month"];
const WHOLE = /^\d+$/;
/** From this part of a limit on, it is shown as nearly used up. */
const NEARLY = 0.8;
const AMOUNT = /^(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?$/i;

/**
 * What is limited: the field of a quota, its label in the dialog, how it reads from text and how it is written as text.
 * @type {{field: string, label: string, read: (text: string) => any, write: (value: any) => string}[]}
 */
const KINDS = [
  {
    field: "gpus",
    label: "GPUs held at once",
    read: (text) => limitsOf(text, "h100=8; * counts all types"),
    write: (value) => pairs(value),
  },
  { field: "jobs_running", label: "Jobs that run at once", read: countIn, write: (value) => String(value ?? "") },
  { field: "jobs_unfinished", label: "Unfinished jobs", read: countIn, write: (value) => String(value ?? "") },
  { field: "gpu_hours", label: "GPU-hours", read: (text) => budgetsOf(text), write: (value) => pairs(value) },
  { field: "cost", label: "Cost", read: (text) => budgetsOf(text), write: (value) => pairs(value) },
];

/**
 * Limits by name in an order that stays: types by name, all types last; a day before a week and a month.
 * @param {Record<string, number> | undefined} limits
 */
export const inOrder = (limits) =>
  Object.entries(limits ?? {}).sort(
    ([a], [b]) =>
      PERIODS.indexOf(a) - PERIODS.indexOf(b) || Number(a === "*") - Number(b === "*") || a.localeCompare(b, "en"),
  );

/** @param {Record<string, number> | undefined} limits */
const pairs = (limits) =>
  inOrder(limits)
    .map(([name, limit]) => `${name}=${limit}`)
    .join(", ");

/**
 * Limits from text such as "h100=8, *=64"; empty text is no limit.
 * @param {string} text @param {string} example @param {(name: string, limit: string) => boolean} [allowed]
 * @returns {Record<string, number>}
 */
export function limitsOf(text, example = "h100=8", allowed = (name, limit) => Boolean(name) && WHOLE.test(limit)) {
  return Object.fromEntries(
    text
      .split(/[\s,]+/)
      .filter(Boolean)
      .map((part) => {
        const [name, limit = ""] = part.split("=");
        if (!allowed(name, limit)) throw new Error(`${part}: write it as in ${example}`);
        return [name, Number(limit)];
      }),
  );
}

/** Budgets from text such as "week=500, month=2000". @param {string} text */
export const budgetsOf = (text) =>
  limitsOf(
    text,
    "week=500; there are day, week and month",
    (name, limit) => PERIODS.includes(name) && AMOUNT.test(limit),
  );

/** @param {string} text @returns {number | undefined} */
function countIn(text) {
  if (text && !WHOLE.test(text)) throw new Error(`${text}: write a number of jobs, or nothing for no limit`);
  return text ? Number(text) : undefined;
}

/** What a limit counts. @param {{resource: string, of: string}} limit @param {number} [count] */
function unitOf({ resource, of }, count = 0) {
  const many = count === 1 ? "" : "s";
  if (resource === "gpus") return of === "*" ? `GPU${many}` : `GPU${many} of ${of}`;
  if (resource === "gpu_hours") return `GPU-hour${many} a ${of}`;
  return resource === "cost" ? `cost a ${of}` : `${resource === "jobs_running" ? "running" : "unfinished"} job${many}`;
}

/** All limits of a quota in words: "8 GPUs of h100, 500 GPU-hours a week". @param {any} quota @returns {string} */
export function quotaText(quota) {
  const limits = KINDS.flatMap(({ field }) => {
    const value = quota?.[field];
    return typeof value === "number"
      ? [`${number(value)} ${unitOf({ resource: field, of: "" }, value)}`]
      : inOrder(value).map(([of, limit]) => `${number(limit)} ${unitOf({ resource: field, of }, limit)}`);
  });
  const fills = quota?.beyond === "backfill" && (quota.gpu_hours || quota.cost);
  return [...limits, ...(fills ? ["beyond these only GPUs that are due to no job"] : [])].join(", ");
}

const isBudget = (/** @type {{resource: string}} */ { resource }) => resource === "gpu_hours" || resource === "cost";

/** What is used of every limit, of tenants and of their users. @param {any[]} tenants */
function limitsSection(tenants) {
  const rows = tenants.flatMap(({ name, limits }) => limits.map((/** @type {any} */ one) => ({ ...one, tenant: name })));
  return h(
    "section",
    { key: "limits", "aria-label": "Used of the limits" },
    h("div", { class: "head" }, h("h2", null, "Used of the limits")),
    shortTable(
      "Used of the limits",
      [
        {
          head: "Limit of",
          cell: (one) => [plain(one.tenant, 60), one.user && h("span", { class: "muted" }, ` · ${plain(one.user, 40)}`)],
        },
        { head: "What", cell: (one) => unitOf(one) },
        { head: "Used", class: "number", cell: (one) => `${number(one.used)} of ${number(one.limit)}` },
        { head: "Set aside", class: "number", cell: (one) => (isBudget(one) ? number(one.committed) : "") },
        {
          head: "Part",
          cell: (one) => {
            const part = Math.min(1, one.limit > 0 ? (one.used + (one.committed ?? 0)) / one.limit : 1);
            return h(
              "div",
              { class: part >= NEARLY ? "meter near" : "meter", role: "img", "aria-label": percent(part) },
              h("i", { style: { width: percent(part).replace(" ", "") } }),
            );
          },
        },
        { head: "Renewed on", cell: (one) => (one.renews_at ? `${one.renews_at.slice(0, 10)} UTC` : "") },
      ],
      rows,
      { key: (one) => [one.tenant, one.user, one.resource, one.of].join(" ") },
    ),
  );
}

/**
 * @param {any[]} tenants @param {import("./app.js").Context} context @param {() => void} done
 */
export const tenantsSections = (tenants, context, done) => [
  tenantsSection(tenants, context, done),
  tenants.some(({ limits }) => limits.length > 0) && limitsSection(tenants),
];

/** @param {any[]} tenants @param {import("./app.js").Context} context @param {() => void} done */
function tenantsSection(tenants, context, done) {
  const operator = may(context.me.role, "operator");
  /** @param {any} tenant @param {string} verb @param {(tenant: any) => Promise<any>} act */
  const button = (tenant, verb, act) =>
    h(
      "button",
      {
        type: "button",
        class: "why",
        "aria-label": `${verb} the quota of ${plain(tenant.name, 60)}`,
        onclick: () => act(tenant).then((changed) => changed && done()),
      },
      verb,
    );
  const change = (/** @type {any} */ tenant) =>
    operator && [button(tenant, "Set", set), tenant.declared && button(tenant, "Remove", remove)];
  return h(
    "section",
    { key: "tenants", "aria-label": "Tenants and quotas" },
    h(
      "div",
      { class: "head" },
      h("h2", null, "Tenants and quotas"),
      operator &&
        h(
          "button",
          { type: "button", class: "push", onclick: () => set(null).then((name) => name && done()) },
          "Set a quota",
        ),
    ),
    shortTable(
      "Tenants and quotas",
      [
        { head: "Tenant", cell: (tenant) => plain(tenant.name, 60) },
        { head: "Weight", class: "number", cell: (tenant) => tenant.weight },
        { head: "Jobs", class: "number", cell: (tenant) => tenant.jobs_unfinished.toLocaleString("en") },
        { head: "Running", class: "number", cell: (tenant) => tenant.jobs_running.toLocaleString("en") },
        {
          head: "At most",
          cell: ({ quota }) => plain(quotaText(quota), 160) || h("span", { class: "muted" }, "no limit"),
        },
        { head: "Each user at most", optional: true, cell: ({ each_user }) => plain(quotaText(each_user), 160) },
        { head: "Change", optional: true, cell: change },
      ],
      tenants,
      { key: (tenant) => tenant.name, empty: "No tenant is declared, and no job names one." },
    ),
  );
}

/**
 * The fields of a quota, and a function that reads them.
 * @param {string} title @param {string} place  where errors of the scheduler say that it stands
 * @param {any} quota @param {string} owner  what labels end with
 */
function quotaFields(title, place, quota, owner) {
  const controls = KINDS.map(({ field, label, read, write }) => {
    const value = write(quota?.[field]);
    const input = h("input", { value, autocomplete: "off", spellcheck: "false", "data-field": `${place}.${field}` });
    return { input, label: h("label", { class: "field" }, `${label}${owner}`, input), field, read };
  });
  const beyond = h(
    "select",
    { "data-field": `${place}.beyond` },
    [
      ["wait", "wait until they are renewed"],
      ["backfill", "fill GPUs that are due to no job"],
    ].map(([value, text]) => h("option", { value, selected: value === (quota?.beyond || "wait") }, text)),
  );
  return {
    node: h(
      "fieldset",
      { class: "fields" },
      h("legend", null, title),
      controls.map(({ label }) => label),
      h("label", { class: "field" }, `Jobs beyond GPU-hours or cost${owner}`, beyond),
    ),
    /** @returns {Record<string, any>} */
    read: () =>
      Object.fromEntries([
        ["beyond", beyond.value],
        ...controls.map(({ input, field, read }) => {
          try {
            return [field, read(input.value.trim())];
          } catch (error) {
            throw Object.assign(/** @type {Error} */ (error), { control: input });
          }
        }),
      ]),
  };
}

/** @param {any} tenant  null for a new one @returns {Promise<string | undefined>} its name, once it is set */
async function set(tenant) {
  const field = (/** @type {string} */ label, /** @type {any} */ input) => h("label", { class: "field" }, label, input);
  const name = h("input", {
    value: tenant?.name ?? "",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    readonly: tenant !== null,
  });
  const weight = h("input", {
    type: "number",
    "data-field": "weight",
    min: "0",
    step: "any",
    // The name of a tenant stays.
    autofocus: tenant !== null,
    value: String(tenant?.weight ?? 1),
  });
  const policy = h(
    "select",
    { "data-field": "policy" },
    ["fairness", "fifo"].map((value) =>
      h("option", { value, selected: value === (tenant?.policy || "fairness") }, value),
    ),
  );
  const all = quotaFields("All its jobs together", "quota", tenant?.quota, "");
  const each = quotaFields("Each of its users", "each_user", tenant?.each_user, ", each user");
  const answer = await ask(
    tenant ? `Quota of ${plain(tenant.name, 60)}` : "Set a quota",
    h(
      "div",
      { class: "fields" },
      h(
        "div",
        { class: "columns three" },
        field("Tenant, such as org/team", name),
        field("Weight among its siblings", weight),
        field("How tenants and jobs below it share", policy),
      ),
      h("div", { class: "columns" }, all.node, each.node),
      h(
        "p",
        { class: "small muted" },
        "GPUs by type, as in h100=8, *=64; GPU-hours and cost by period, as in week=500, month=2000; an empty field is no limit. ",
        "Nothing is killed: jobs beyond a limit stop with their round. gavel tenant set does the same.",
      ),
    ),
    {
      label: "Set",
      wide: true,
      submit: () =>
        call("PATCH", "/v1/tenants", {
          tenants: [
            {
              name: name.value.trim(),
              weight: Number(weight.value),
              policy: policy.value,
              quota: all.read(),
              each_user: each.read(),
              version: tenant?.version ?? "undeclared",
            },
          ],
        }),
    },
  );
  if (!answer) return undefined;
  notice(`The quota of ${plain(name.value.trim(), 60)} is set.`);
  return name.value.trim();
}

/** Forget the declaration of a tenant. @param {any} tenant @returns {Promise<boolean>} */
async function remove(tenant) {
  const name = plain(tenant.name, 60);
  const text = "Its weight, quota and budgets are forgotten. Its jobs stay, and have no limits of their own any more.";
  const done = await ask(`Remove the quota of ${name}?`, h("p", null, text), {
    label: "Remove",
    danger: true,
    submit: () => call("PATCH", "/v1/tenants", { removed: [tenant.name] }).then(() => true),
  });
  if (done) notice(`The quota of ${name} is removed.`);
  return Boolean(done);
}
