// @ts-check
// What tenants were due and what they received, over time and by GPU type.

import { get, withQuery } from "./api.js";
import { css, ratioColor } from "./colors.js";
import { h, patch } from "./dom.js";
import { Picture, ticks, viewChoice } from "./picture.js";
import { choice, inAddress, readAgain } from "./reading.js";
import { shortTable } from "./table.js";
import { tenantsSections } from "./tenants.js";
import { clock, gpuHours, number, percent, plain, seconds } from "./values.js";

const DAY_S = 86400;
const ALIKE_S = 30;
/** Steps of time in a picture of a tenant. */
const STEPS = 96;

/**
 * Accounts by tenant: in all, by type, and over time.
 * @param {any[]} accounts
 */
export function byTenant(accounts) {
  /** @type {Map<string, {tenant: string, due: number, received: number, types: Map<string, {due: number, received: number}>, steps: Map<number, {due: number, received: number}>}>} */
  const tenants = new Map();
  for (const account of accounts) {
    // Jobs that name no tenant belong to the one called default.
    const tenant = account.tenant || "default";
    const one = tenants.get(tenant) ?? {
      tenant,
      due: 0,
      received: 0,
      types: new Map(),
      steps: new Map(),
    };
    const [type, step] = [
      one.types.get(account.worker_type) ?? { due: 0, received: 0 },
      one.steps.get(seconds(account.starts) ?? 0) ?? { due: 0, received: 0 },
    ];
    for (const sum of [one, type, step]) {
      sum.due += account.due_s;
      sum.received += account.received_s;
    }
    one.types.set(account.worker_type, type);
    one.steps.set(seconds(account.starts) ?? 0, step);
    tenants.set(tenant, one);
  }
  return [...tenants.values()].sort((a, b) => b.due - b.received - (a.due - a.received));
}

const SPANS = /** @type {[string, string][]} */ ([
  ["3600", "hour"],
  [String(DAY_S), "day"],
  [String(7 * DAY_S), "week"],
]);

/** @param {import("./app.js").Context} context @returns {import("./app.js").Page} */
export function fairness(context) {
  let length = inAddress("over", "3600");
  let view = inAddress("view", "picture");
  /** @type {any} */
  let shares = null;
  /** @type {any[]} */
  let known = [];
  let problem = "";
  /** @type {Map<string, Curve>} */
  const curves = new Map();
  const node = h("div");

  async function load() {
    try {
      // Pages that ask at about the same time ask for the same, so that the gateway can share the answer.
      const now = Math.floor(Date.now() / 1000 / ALIKE_S) * ALIKE_S;
      const since = now - Number(length);
      const read = (/** @type {number} */ from) =>
        get("/v1/shares", { since: from, step_s: Math.max(10, (now - from) / STEPS) });
      const [past, declared] = await Promise.all([read(since), get("/v1/tenants")]);
      [shares, known] = [past, declared.tenants];
      // A young cluster fills the picture with what there is.
      const first = Math.min(...shares.accounts.map((/** @type {any} */ one) => seconds(one.starts) ?? Infinity));
      if (Number.isFinite(first) && first - since > Number(length) / 3) shares = await read(first);
      problem = "";
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
    }
    draw();
  }

  const choose = (/** @type {{length?: string, view?: string}} */ change) => {
    [length, view] = [change.length ?? length, change.view ?? view];
    context.go(
      withQuery("/fairness", { over: length === "3600" ? "" : length, view: view === "table" ? view : "" }),
      true,
    );
    load();
  };

  function draw() {
    const tenants = byTenant(shares?.accounts ?? []);
    const types = [...new Set((shares?.accounts ?? []).map((/** @type {any} */ one) => one.worker_type))].sort();
    const most = Math.ceil(
      Math.max(1, ...tenants.flatMap((one) => [...one.steps.values()].flatMap((step) => [step.due, step.received]))) /
        (shares?.step_s || 1),
    );
    patch(
      node,
      h("h1", { class: "unseen" }, "Fairness"),
      h(
        "div",
        { class: "head" },
        h("h2", null, "GPUs due and received"),
        h(
          "div",
          { class: "legend" },
          h("span", null, "– – due"),
          h("span", null, "— received"),
          h("span", null, "behind", h("i", { class: "ramp", "aria-hidden": "true" }), "ahead"),
        ),
        h(
          "div",
          { class: "push tools" },
          choice("Over which time", SPANS, length, (value) => choose({ length: value })),
          viewChoice(view, (name) => choose({ view: name })),
        ),
      ),
      problem && h("p", { class: "problem" }, problem),
      !shares
        ? h("p", { class: "empty", key: "loading" }, "Reading the shares …")
        : tenants.length === 0
          ? h("p", { class: "empty", key: "none" }, "Nothing was due or received in this time.")
          : view === "table"
            ? h("div", { key: "twin" }, stepTable(tenants))
            : h(
                "div",
                { class: "multiples", key: "multiples" },
                tenants.map((one) => {
                  const curve = curves.get(one.tenant) ?? new Curve(plain(one.tenant, 80));
                  curves.set(one.tenant, curve);
                  curve.show(one.steps, seconds(shares.since) ?? 0, seconds(shares.until) ?? 1, shares.step_s, most);
                  return h(
                    "div",
                    { key: `tenant ${one.tenant}` },
                    h(
                      "h3",
                      null,
                      plain(one.tenant, 60),
                      h(
                        "span",
                        { class: "muted" },
                        one.due > 0
                          ? `${(one.received / one.due).toFixed(2)}× of ${gpuHours(one.due)}`
                          : gpuHours(one.received),
                      ),
                    ),
                    curve.picture.node,
                  );
                }),
              ),
      tenants.length > 0 &&
        h(
          "section",
          { key: "sums", "aria-label": "By tenant and type" },
          h("div", { class: "head" }, h("h2", null, "By tenant and type")),
          shortTable(
            "By tenant and type",
            [
              { head: "Tenant", cell: (one) => plain(one.tenant, 60) },
              { head: "Due", class: "number", cell: (one) => gpuHours(one.due) },
              { head: "Received", class: "number", cell: (one) => gpuHours(one.received) },
              {
                head: "Gap",
                class: "number",
                cell: (one) =>
                  one.due > 0
                    ? `${one.received < one.due ? "−" : "+"}${percent(Math.abs(one.received - one.due) / one.due)}`
                    : "",
              },
              ...types.map((type) => ({
                head: `${type}: received of due`,
                class: "number",
                cell: (/** @type {any} */ one) => {
                  const sum = one.types.get(type);
                  return sum && `${gpuHours(sum.received)} of ${gpuHours(sum.due)}`;
                },
              })),
            ],
            tenants,
            { key: (one) => one.tenant },
          ),
          h(
            "p",
            { class: "small muted" },
            "A gap smaller than a round is not a fault: shares are met over several rounds, and a job gets a whole turn or none.",
          ),
        ),
      shares && tenantsSections(known, context, load),
    );
    for (const curve of curves.values()) curve.picture.paint();
  }

  return readAgain(context, "Fairness", load, node, {
    theme: draw,
    stop: () => curves.forEach((curve) => curve.picture.stop()),
  });
}

/** @param {ReturnType<typeof byTenant>} tenants */
const stepTable = (tenants) =>
  shortTable(
    "Due and received over time",
    [
      { head: "Tenant", cell: (row) => plain(row.tenant, 60) },
      { head: "From", cell: (row) => clock(row.at) },
      { head: "Due", class: "number", cell: (row) => gpuHours(row.due) },
      { head: "Received", class: "number", cell: (row) => gpuHours(row.received) },
    ],
    tenants.flatMap((one) =>
      [...one.steps].sort(([a], [b]) => a - b).map(([at, step]) => ({ tenant: one.tenant, at, ...step })),
    ),
  );

/** What a tenant was due and received over time: the area between the two has the colour of the gap. */
class Curve {
  /** @param {string} name */
  constructor(name) {
    /** @type {{at: number, due: number, received: number}[]} */
    this.steps = [];
    this.from = 0;
    this.to = 1;
    this.step = 1;
    this.most = 1;
    this.picture = new Picture(
      `GPUs that ${name} was due and received over time. The table beside it has the same.`,
      (pen) => this.draw(pen),
      (x) => this.spotAt(x),
    );
  }

  /** @param {Map<number, {due: number, received: number}>} steps @param {number} from @param {number} to @param {number} step @param {number} most */
  show(steps, from, to, step, most) {
    [this.from, this.to, this.step, this.most] = [from, to, step, most];
    this.steps = [];
    for (let at = from; at < to - 1; at += step) {
      const near = [...steps].find(([start]) => Math.abs(start - at) < step / 2)?.[1];
      const size = Math.min(step, to - at);
      this.steps.push({ at, due: (near?.due ?? 0) / size, received: (near?.received ?? 0) / size });
    }
    this.picture.show(120);
  }

  /** @param {import("./picture.js").Pen} pen */
  draw({ g, width, height, colors }) {
    const floor = height - 20;
    const x = (/** @type {number} */ at) => ((at - this.from) / (this.to - this.from)) * width;
    const y = (/** @type {number} */ value) => floor - (value / this.most) * (floor - 8);
    for (const { at, due, received } of this.steps) {
      g.fillStyle = css(ratioColor(due, received, colors), 0.45);
      g.fillRect(
        x(at),
        Math.min(y(due), y(received)),
        x(at + this.step) - x(at) + 0.5,
        Math.abs(y(due) - y(received)),
      );
    }
    const line = (/** @type {(step: any) => number} */ value, /** @type {number[]} */ dash) => {
      g.beginPath();
      for (const step of this.steps) {
        g.lineTo(x(step.at), y(value(step)));
        g.lineTo(Math.min(width, x(step.at + this.step)), y(value(step)));
      }
      g.setLineDash(dash);
      g.stroke();
      g.setLineDash([]);
    };
    g.strokeStyle = css(colors.line);
    g.strokeRect(-1, floor + 0.5, width + 2, 0);
    g.lineWidth = 1.5;
    g.strokeStyle = css(colors.muted);
    line((step) => step.due, [4, 4]);
    g.strokeStyle = css(colors.ink);
    line((step) => step.received, []);
    g.lineWidth = 1;
    g.fillStyle = css(colors.muted);
    for (const [at, label] of ticks(this.from, this.to, 4))
      if (x(at) < width - 40) g.fillText(label, x(at), height - 6);
    g.fillText(`${number(this.most)} GPUs`, 0, 6);
  }

  /** @param {number} x @returns {import("./picture.js").Spot | null} */
  spotAt(x) {
    const at = this.from + (x / this.picture.node.clientWidth) * (this.to - this.from);
    const step = this.steps.find((one) => one.at <= at && at < one.at + this.step);
    return step
      ? { text: `${clock(step.at)}\ndue ${number(step.due)} GPUs, received ${number(step.received)}` }
      : null;
  }
}
