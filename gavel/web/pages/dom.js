// @ts-check
// Elements from plain values. Every string becomes a text node, so nothing that a user named is ever read as markup.

/** @typedef {Node | string | number | null | undefined | boolean | Array<any>} Child */
/** @typedef {Record<string, any>} Props */

const HANDLERS = Symbol("handlers");
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "selected", "indeterminate"]);

/**
 * Make an element. `on…` are handlers, `style` sets variables and properties through the CSSOM, which the content
 * security policy allows, `key` names the element among its siblings; all else are attributes.
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  const handlers = /** @type {Record<string, any>} */ ({});
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) handlers[name] = /** @type {any} */ (node)[name] = value;
    else if (name === "style")
      for (const [key, text] of Object.entries(value)) node.style.setProperty(key, String(text));
    else if (name === "key") node.dataset.key = String(value);
    else if (PROPERTIES.has(name)) /** @type {any} */ (node)[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  /** @type {any} */ (node)[HANDLERS] = handlers;
  node.append(...nodesOf(children));
  return node;
}

/**
 * @param {Child[]} children
 * @returns {Node[]}
 */
function nodesOf(children) {
  return children.flatMap((child) => {
    if (Array.isArray(child)) return nodesOf(child);
    if (child === null || child === undefined || typeof child === "boolean") return [];
    return [child instanceof Node ? child : document.createTextNode(String(child))];
  });
}

/**
 * Make the children of `parent` equal to these, and keep what is the same: focus, selection and scroll positions stay.
 * @param {Element} parent
 * @param {...Child} children
 */
export function patch(parent, ...children) {
  const wanted = nodesOf(children);
  const keyed = new Map();
  for (const node of parent.children) if (keyOf(node)) keyed.set(keyOf(node), node);
  /** @type {ChildNode | null} */
  let place = parent.firstChild;
  for (const node of wanted) {
    const key = keyOf(node);
    const old = key ? keyed.get(key) : place && !keyOf(place) ? place : null;
    if (old && alike(old, node)) {
      if (old === place) place = old.nextSibling;
      else parent.insertBefore(old, place);
      if (old !== node) update(old, node);
    } else parent.insertBefore(node, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** @param {Node} node */
const keyOf = (node) => (node instanceof HTMLElement ? node.dataset.key : undefined);

/** @param {Node} a @param {Node} b */
const alike = (a, b) =>
  a === b || (a.nodeName === b.nodeName && !(a instanceof HTMLCanvasElement) && keyOf(a) === keyOf(b));

/** @param {any} old @param {any} node */
function update(old, node) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!node.hasAttribute(name) && name !== "style") old.removeAttribute(name);
  for (const { name, value } of node.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== node.style.cssText) old.style.cssText = node.style.cssText;
  for (const name of Object.keys(old[HANDLERS] ?? {})) if (!(name in (node[HANDLERS] ?? {}))) old[name] = null;
  Object.assign(old, node[HANDLERS]);
  old[HANDLERS] = node[HANDLERS];
  for (const name of ["checked", "disabled", "indeterminate"]) {
    if (name in old && old[name] !== node[name]) old[name] = node[name];
  }
  // What a user is typing stays; a field that does not have the focus follows the state.
  if ("value" in old && old !== document.activeElement && old.value !== node.value) old.value = node.value;
  if (!("keep" in old.dataset)) patch(old, ...node.childNodes);
}

/**
 * A link within the pages.
 * @param {string} href
 * @param {...Child} children
 */
export const link = (href, ...children) => h("a", { href }, ...children);

/** @param {string} job */
export const jobPath = (job) => `/jobs/${encodeURIComponent(job)}`;

/** @param {string} node */
export const nodePath = (node) => `/nodes/${encodeURIComponent(node)}`;

/**
 * Tell readers of the screen about a change, without moving the focus.
 * @param {string} text
 */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region && region.textContent !== text) region.textContent = text;
}

/**
 * Show a short notice at the lower edge, for as long as it takes to read it.
 * @param {string} text
 * @param {"done" | "failed"} kind
 */
export function notice(text, kind = "done") {
  const region = document.getElementById("notices");
  if (!region) return;
  const close = () => item.remove();
  const item = h(
    "div",
    { class: `notice ${kind}` },
    h("span", null, text),
    h("button", { type: "button", class: "plain", "aria-label": "Close this notice", onclick: close }, "×"),
  );
  region.append(item);
  if (kind === "done") setTimeout(close, 6000);
}

/**
 * Ask for a decision in a modal dialog; resolves with what `submit` returned, or undefined if the user left it.
 * A submit that throws keeps the dialog open and shows why. While a dialog is open, there is no second one.
 * @param {string} title
 * @param {Child} body
 * @param {{label: string, danger?: boolean, wide?: boolean, submit: (form: HTMLFormElement) => any}} action
 * @returns {Promise<any>}
 */
export function ask(title, body, action) {
  if (document.querySelector("dialog[open]")) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    /** @type {any} */
    let result;
    const problem = h("p", { class: "problem", role: "alert", id: "dialog-problem" });
    const go = h("button", { class: action.danger ? "danger" : "primary" }, action.label);
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (/** @type {Event} */ event) => {
          event.preventDefault();
          go.disabled = true;
          try {
            result = await action.submit(form);
            box.close();
          } catch (error) {
            blame(form, problem, error);
          } finally {
            go.disabled = false;
          }
        },
      },
      h("h2", { id: "dialog-title" }, title),
      body,
      problem,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => box.close() }, "Back"), go),
    );
    const box = h("dialog", { "aria-labelledby": "dialog-title", class: action.wide ? "wide" : null }, form);
    box.addEventListener("close", () => {
      box.remove();
      before?.focus?.();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
  });
}

/**
 * Show an error below the field that it concerns: its `control`, the one that the scheduler names, or the only one.
 * @param {HTMLFormElement} form @param {HTMLElement} problem @param {any} error
 */
function blame(form, problem, error) {
  const controls = /** @type {HTMLElement[]} */ ([...form.querySelectorAll("input:not([type=file]), select, textarea")]);
  const path = `.${error.body?.field ?? ""}.`;
  const control =
    error.control ??
    controls.find(({ dataset }) => dataset.field && path.includes(`.${dataset.field}.`)) ??
    (controls.length === 1 ? controls[0] : null);
  for (const other of controls) {
    other.removeAttribute("aria-invalid");
    other.removeAttribute("aria-describedby");
  }
  // An alert that stays where it is, with the same words, would not be read again.
  problem.textContent = "";
  if (control) {
    (control.closest("label") ?? control).after(problem);
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", problem.id);
    control.focus();
  } else form.lastElementChild?.before(problem);
  problem.textContent = String(error.message ?? error);
}

/** Close the open dialog, if there is one: what it asked belongs to the page before. */
export const leaveDialog = () => /** @type {HTMLDialogElement | null} */ (document.querySelector("dialog[open]"))?.close();
