// @ts-check
// Tenants with their weights and quotas, what is used of these, and a dialog that sets them.

import { call, may } from "./api.js";
import { ask, h, notice } from "./dom.js";
import { shortTable } from "./table.js";
import { number, plain } from "./values.js";

/**
 * Limits from text such as "h100=8, *=64"; empty text is no limit.
 * @param {string} text @returns {Record<string, number>}
 */
export function limitsOf(text) {
  return Object.fromEntries(
    text
      .split(/[\s,]+/)
      .filter(Boolean)
      .map((part) => {
        const [type, count] = part.split("=");
        if (!type || !/^\d+$/.test(count ?? ""))
          throw new Error(`${part}: write a GPU type and a number, as in h100=8; * counts all types`);
        return [type, Number(count)];
      }),
  );
}

/** @param {{gpus?: Record<string, number>} | undefined} quota */
const limitText = (quota) =>
  Object.entries(quota?.gpus ?? {})
    .map(([type, count]) => `${type}=${count}`)
    .join(", ");

/** What jobs may spend in a period. @param {{gpu_hours?: Record<string, number>, cost?: Record<string, number>} | undefined} quota */
const budgetText = (quota) =>
  [
    ...Object.entries(quota?.gpu_hours ?? {}).map(([period, hours]) => `${number(hours)} GPU-hours a ${period}`),
    ...Object.entries(quota?.cost ?? {}).map(([period, cost]) => `a cost of ${number(cost)} a ${period}`),
  ].join(", ");

/** @param {{resource: string, of: string}} limit  of GPUs of a type, or of what may be spent in a period */
const unitOf = ({ resource, of }) =>
  resource === "gpus" ? (of === "*" ? "GPUs" : of) : `${resource === "cost" ? "of cost" : "GPU-hours"} a ${of}`;

/** @param {any} tenant @returns {string} */
const usedText = (tenant) =>
  tenant.limits
    .map(
      (/** @type {any} */ limit) =>
        `${limit.user ? `${plain(limit.user, 30)}: ` : ""}${number(limit.used)} of ${number(limit.limit)} ${unitOf(limit)}`,
    )
    .join(", ");

/**
 * @param {any[]} tenants @param {import("./app.js").Context} context @param {() => void} done
 */
export function tenantsSection(tenants, context, done) {
  const operator = may(context.me.role, "operator");
  const change = (/** @type {any} */ tenant) =>
    operator &&
    h(
      "button",
      {
        type: "button",
        class: "why",
        "aria-label": `Set the quota of ${plain(tenant.name, 60)}`,
        onclick: () => set(tenant).then((name) => name && done()),
      },
      "Set",
    );
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
          head: "Used of its limits",
          cell: (tenant) => usedText(tenant) || h("span", { class: "muted" }, "no limit"),
        },
        {
          head: "Each user",
          optional: true,
          cell: ({ each_user }) =>
            plain([limitText(each_user), budgetText(each_user)].filter(Boolean).join(", "), 120),
        },
        { head: "Change", optional: true, cell: change },
      ],
      tenants,
      { key: (tenant) => tenant.name, empty: "No tenant is declared, and no job names one." },
    ),
  );
}

/** @param {any} tenant  null for a new one @returns {Promise<string | undefined>} its name, once it is set */
async function set(tenant) {
  const field = (/** @type {string} */ label, /** @type {string} */ value, /** @type {any} */ more = {}) => {
    const input = h("input", { value, autocomplete: "off", spellcheck: "false", ...more });
    const limits = () => {
      try {
        return limitsOf(input.value);
      } catch (error) {
        throw Object.assign(/** @type {Error} */ (error), { control: input });
      }
    };
    return { input, limits, label: h("label", { class: "field" }, label, input) };
  };
  const name = field("Tenant, such as org/team", tenant?.name ?? "", { required: true, readonly: tenant !== null });
  const weight = field("Weight among the tenants of the same parent", String(tenant?.weight ?? 1), {
    type: "number",
    "data-field": "weight",
    min: "0",
    step: "any",
  });
  const gpus = field("GPUs held at once, such as h100=8, *=64", limitText(tenant?.quota), { "data-field": "quota" });
  const users = field("GPUs held at once by each user", limitText(tenant?.each_user), { "data-field": "each_user" });
  const answer = await ask(
    tenant ? `Quota of ${plain(tenant.name, 60)}` : "Set a quota",
    h(
      "div",
      { class: "fields" },
      name.label,
      weight.label,
      gpus.label,
      users.label,
      h(
        "p",
        { class: "small muted" },
        "Nothing is killed: after a quota was lowered, jobs beyond it stop with their round. gavel tenant set does the same.",
      ),
    ),
    {
      label: "Set",
      submit: () =>
        call("PATCH", "/v1/tenants", {
          tenants: [
            {
              name: name.input.value.trim(),
              weight: Number(weight.input.value),
              policy: tenant?.policy ?? "",
              quota: { ...tenant?.quota, gpus: gpus.limits() },
              each_user: { ...tenant?.each_user, gpus: users.limits() },
              version: tenant?.version ?? "undeclared",
            },
          ],
        }),
    },
  );
  if (!answer) return undefined;
  notice(`The quota of ${plain(name.input.value.trim(), 60)} is set.`);
  return name.input.value.trim();
}
