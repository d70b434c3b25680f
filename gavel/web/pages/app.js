// @ts-check
// The frame of all pages: who is signed in, which page is shown, how old its figures are.

import { call, get, session } from "./api.js";
import { announce, ask, h, leaveDialog, patch } from "./dom.js";
import { Live } from "./live.js";
import { ago, clock, plain } from "./values.js";

/**
 * A page: its element, and what it does when something changed.
 * @typedef {{
 *   node: HTMLElement,
 *   title: string,
 *   update: (state: import("./live.js").State, kinds: Set<string>, gone: any[]) => void,
 *   stop?: () => void,
 *   theme?: () => void,
 *   keys?: Record<string, () => void>,
 * }} Page
 */
/**
 * What pages are given. `types`: all GPU types of the cluster, sorted, so that a type has one colour everywhere.
 * @typedef {{live: Live, me: any, go: (path: string, replace?: boolean) => void, types: (more?: string[]) => string[]}} Context
 */

const TABS = [
  ["/", "Overview"],
  ["/queue", "Queue"],
  ["/nodes", "Nodes"],
  ["/rounds", "Rounds"],
  ["/fairness", "Fairness"],
  ["/use", "Use"],
];
const live = new Live();
const frame = /** @type {HTMLElement} */ (document.getElementById("frame"));
const main = h("main", { id: "main", tabindex: "-1", "data-keep": "" });
/** @type {any} */
let me = null;
/** @type {Page | null} */
let page = null;
let visit = 0;
/** @type {Set<string>} */
const types = new Set();

/** @type {Context} */
const context = {
  live,
  get me() {
    return me;
  },
  go,
  types(more = []) {
    for (const type of more) types.add(type);
    return [...types].sort();
  },
};

/** @param {string} path @returns {Promise<(context: Context, parts: string[]) => Page>} */
async function pageOf(path) {
  const [first, second] = path.split("/").slice(1);
  if (first === "") return (await import("./overview.js")).overview;
  if (first === "queue") return (await import("./queue.js")).queue;
  if (first === "jobs" && second) return (await import("./job.js")).job;
  if (first === "nodes") return second ? (await import("./node.js")).node : (await import("./nodes.js")).nodes;
  if (first === "rounds") return (await import("./rounds.js")).rounds;
  if (first === "fairness") return (await import("./fairness.js")).fairness;
  if (first === "use") return (await import("./use.js")).use;
  return () => ({
    node: h("div", null, h("h1", null, "There is no such page"), h("p", null, h("a", { href: "/" }, "Overview"))),
    title: "No page",
    update() {},
  });
}

/** @param {string} part  of an address, which somebody may have cut */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Show the page of the address. */
async function show() {
  const current = ++visit;
  const make = await pageOf(location.pathname);
  if (current !== visit || !me) return;
  page?.stop?.();
  leaveDialog();
  page = make(context, location.pathname.split("/").slice(2).map(decoded));
  main.replaceChildren(page.node);
  scrollTo(0, 0);
  update(live.state, new Set(["page"]), []);
}

/** @param {string} path @param {boolean} [replace]  the page stays; only its address changes */
function go(path, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  if (replace) return;
  show().then(() => main.focus({ preventScroll: true }));
}

/** @param {import("./live.js").State} state @param {Set<string>} kinds @param {any[]} gone */
function update(state, kinds, gone) {
  if (!me) return;
  drawFrame();
  page?.update(state, kinds, gone);
  document.title = page ? `${plain(page.title, 60)} · Gavel` : "Gavel";
}

function drawFrame() {
  const { staleSince, staleWhy, overview } = live.state;
  const now = Date.now() / 1000;
  const round = overview?.round;
  const left = round ? Date.parse(round.ends) / 1000 - now : 0;
  const words = staleSince
    ? `Stale since ${clock(staleSince)}`
    : !overview
      ? "Connecting"
      : round
        ? `Round ${round.number.toLocaleString("en")}${left > 0 ? ` · ${Math.ceil(left)} s left` : ""}`
        : "Live";
  if (staleSince && !frame.querySelector(".pulse.stale"))
    announce(`The figures are stale since ${clock(staleSince)}: ${staleWhy}`);
  if (!staleSince && frame.querySelector(".pulse.stale")) announce("The scheduler answers again.");
  const at = `/${location.pathname.split("/")[1]}`;
  patch(
    frame,
    h("a", { class: "skip", href: "#main", key: "skip" }, "To the content"),
    h(
      "header",
      { class: "bar", key: "bar" },
      h(
        "a",
        { class: "brand", href: "/", "aria-label": "Gavel, overview" },
        h("i", { "aria-hidden": "true" }, h("b"), h("b"), h("b"), h("b")),
        "Gavel",
      ),
      h(
        "nav",
        { class: "tabs", "aria-label": "Pages" },
        TABS.map(([path, name]) =>
          h(
            "a",
            { href: path, "aria-current": path === at || (at === "/jobs" && path === "/queue") ? "page" : null },
            name,
          ),
        ),
      ),
      h(
        "div",
        { class: "right" },
        h(
          "span",
          {
            class: staleSince ? "pulse stale" : "pulse",
            title: staleSince ? `${staleWhy} (${ago(staleSince, now)})` : me?.cluster?.address,
          },
          words,
        ),
        h("span", { class: "small muted wide-only" }, plain(me?.user ?? "", 24)),
        h(
          "button",
          {
            class: "icon",
            type: "button",
            "aria-label": "Light or dark",
            title: "Light or dark",
            onclick: turnTheme,
          },
          "◐",
        ),
        h(
          "button",
          {
            class: "icon wide-only",
            type: "button",
            "aria-label": "Keys, and sign out",
            title: "Keys, and sign out (?)",
            onclick: help,
          },
          "?",
        ),
      ),
    ),
    main,
  );
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  page?.theme?.();
}

function help() {
  const keys = [
    ["g then o, q, n, r, f, u", "Overview, Queue, Nodes, Rounds, Fairness, Use"],
    ["/", "Search in the queue"],
    ["t", "Light or dark"],
    ["?", "These keys"],
  ];
  ask(
    "Keys",
    h(
      "div",
      null,
      h(
        "dl",
        { class: "keys" },
        keys.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)]),
      ),
      h(
        "p",
        { class: "small muted" },
        `${me.user || "you"}, ${me.role}, on the scheduler at ${me.cluster.address} (${me.cluster.version || "version unknown"})`,
      ),
    ),
    {
      label: "Sign out",
      submit: () => call("DELETE", "/session").then(() => signIn("You are signed out.", me.mode)),
    },
  );
}

/** @param {string} detail @param {string} mode */
function signIn(detail, mode) {
  me = null;
  visit++;
  leaveDialog();
  live.close();
  page?.stop?.();
  page = null;
  const problem = h("p", { class: "problem", role: "alert" }, detail);
  const field = h("input", {
    type: "password",
    name: "secret",
    autocomplete: "off",
    required: true,
    spellcheck: "false",
  });
  const code = mode === "code";
  document.title = "Sign in · Gavel";
  frame.replaceChildren(
    h(
      "main",
      { class: "login" },
      h("h1", null, "Gavel"),
      h(
        "form",
        {
          onsubmit: async (/** @type {Event} */ event) => {
            event.preventDefault();
            try {
              await enter(
                await call("POST", "/session", code ? { code: codeOf(field.value) } : { token: field.value.trim() }),
              );
            } catch (error) {
              problem.textContent = /** @type {Error} */ (error).message;
            }
          },
        },
        h("label", { class: "field" }, code ? "Code, or the address that gavel web printed" : "Token", field),
        problem,
        h("button", { class: "primary" }, "Sign in"),
      ),
      h(
        "p",
        { class: "small muted" },
        code ? "gavel web prints an address that signs you in." : "gavel token create makes a token.",
      ),
    ),
  );
  field.focus();
}

/** @param {string} text */
const codeOf = (text) => text.trim().split("code=").at(-1) ?? "";

/** @param {any} identity */
async function enter(identity) {
  me = identity;
  frame.replaceChildren();
  drawFrame();
  if (location.pathname === "/login") history.replaceState(null, "", "/");
  live.open();
  const known = await get("/v1/nodes").catch(() => ({ nodes: [] }));
  context.types(known.nodes.map((/** @type {any} */ node) => node.worker_type));
  await show();
}

async function start() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const code = location.hash.includes("code=") ? codeOf(location.hash) : "";
  if (code) history.replaceState(null, "", location.pathname + location.search);
  try {
    await enter(code ? await call("POST", "/session", { code }) : await get("/session"));
  } catch (error) {
    const { status, body, message } = /** @type {any} */ (error);
    signIn(status === 401 && !code ? "" : message, body?.mode ?? (code ? "code" : "token"));
  }
}

session.signedOut = (detail, mode) => me && signIn(detail, mode || me.mode);
live.listeners.add(update);
setInterval(() => me && drawFrame(), 1000);
addEventListener("popstate", () => me && show());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.theme?.());

// Links within the pages change the page; everything else is the browser's.
document.addEventListener("click", (event) => {
  const anchor = /** @type {Element} */ (event.target).closest?.("a");
  if (
    !anchor ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    anchor.hasAttribute("download")
  )
    return;
  if (anchor.origin !== location.origin || anchor.hash || anchor.target || /^\/(v1|openapi)/.test(anchor.pathname))
    return;
  event.preventDefault();
  go(anchor.pathname + anchor.search);
});

let lead = false;
document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (
    !me ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) ||
    document.querySelector("dialog[open]")
  )
    return;
  const tab = lead && TABS["oqnrfu".indexOf(event.key)];
  lead = event.key === "g";
  if (tab) go(tab[0]);
  else if (page?.keys?.[event.key]) page.keys[event.key]();
  else if (event.key === "t") turnTheme();
  else if (event.key === "?") help();
  else if (event.key === "/") go("/queue?focus=1");
  else return;
  event.preventDefault();
});

start();
