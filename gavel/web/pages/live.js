// @ts-check
// What the gateway's stream of events says, as one state. `reduce` is pure; `Live` feeds it.

import { get, session } from "./api.js";

/** @typedef {Record<string, any>} Row  a job as a row of /v1/queue */
/**
 * @typedef {{
 *   event: string,
 *   jobs: Map<string, Row>,
 *   overview: any,
 *   round: number,
 *   staleSince: number,
 *   staleWhy: string,
 *   loaded: boolean,
 * }} State
 */

/** @type {State} */
export const EMPTY = {
  event: "",
  jobs: new Map(),
  overview: null,
  round: 0,
  staleSince: 0,
  staleWhy: "",
  loaded: false,
};

/**
 * Rows from columns; columns that this version does not know come along.
 * @param {Record<string, any[]>} columns
 * @returns {Row[]}
 */
export function rowsOf(columns) {
  const names = Object.keys(columns);
  return Array.from({ length: columns.id?.length ?? 0 }, (_, at) =>
    Object.fromEntries(names.map((name) => [name, columns[name][at]])),
  );
}

/**
 * The state after an event. It shares what did not change with the state before it.
 * @param {State} state @param {string} kind @param {any} data @returns {State}
 */
export function reduce(state, kind, data) {
  switch (kind) {
    case "queue": {
      const jobs = new Map(rowsOf(data.columns).map((row) => [row.id, row]));
      return { ...state, event: data.event, jobs, loaded: true, staleSince: data.stale_since ?? 0 };
    }
    case "jobs": {
      const jobs = new Map(state.jobs);
      for (const row of rowsOf(data.rows)) jobs.set(row.id, row);
      for (const row of rowsOf(data.gone)) jobs.delete(row.id);
      return { ...state, jobs };
    }
    case "overview": {
      const round = data.round?.number ?? state.round;
      return {
        ...state,
        overview: data,
        round,
        staleSince: data.stale_since ?? 0,
        staleWhy: data.stale_since ? state.staleWhy : "",
      };
    }
    case "round":
      return { ...state, round: data.number };
    case "stale":
      // The first cause stays: a gateway that is away as well does not make the figures any younger.
      return { ...state, staleSince: state.staleSince || data.since, staleWhy: data.detail };
    case "live":
      return { ...state, staleSince: 0, staleWhy: "" };
    default:
      return state;
  }
}

/** How many jobs wait, as rows in turn of their submission. @param {State} state */
export const waiting = (state) =>
  [...state.jobs.values()].filter((job) => job.state !== "running" && job.state !== "held");

/** How long to wait before another try after the gateway did not answer. */
const AGAIN_MS = 2000;
const KINDS = ["jobs", "overview", "round", "stale", "live"];

/**
 * One stream of events, opened again whenever it is lost. A page that cannot be seen holds none: a browser opens at most
 * six connections to a host, for all of its tabs together.
 */
export class Live {
  constructor() {
    this.state = EMPTY;
    /** The latest event that arrived. */
    this.position = "";
    /** @type {Set<(state: State, kinds: Set<string>, gone: Row[]) => void>} */
    this.listeners = new Set();
    this.kinds = new Set();
    /** @type {Row[]} */
    this.gone = [];
    /** @type {EventSource | null} */
    this.source = null;
    this.stopped = true;
    this.heard = 0;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Load the queue, then follow it. */
  async open() {
    this.stopped = false;
    this.source?.close();
    try {
      const [queue, overview] = await Promise.all([get("/v1/queue"), get("/v1/overview")]);
      if (this.stopped) return;
      this.position = queue.event;
      this.take("queue", queue);
      this.take("overview", overview);
      this.follow();
    } catch (error) {
      if (/** @type {any} */ (error).status === 401 || this.stopped) return;
      this.lost(/** @type {Error} */ (error).message);
      setTimeout(() => !this.stopped && this.open(), AGAIN_MS);
    }
  }

  /** Close the stream when the page is hidden, and go on after the latest event when it is shown. */
  look() {
    if (this.stopped || !this.position) return;
    if (document.hidden) {
      this.source?.close();
      this.source = null;
    } else if (!this.source) {
      this.follow();
      this.take("shown", {});
    }
  }

  follow() {
    this.source?.close();
    this.source = null;
    if (document.hidden) return;
    const source = new EventSource(`/v1/events?after=${encodeURIComponent(this.position)}`);
    this.source = source;
    for (const kind of KINDS) {
      source.addEventListener(kind, (event) => {
        const { data, lastEventId } = /** @type {MessageEvent} */ (event);
        this.position = lastEventId;
        this.take(kind, JSON.parse(data));
      });
    }
    source.addEventListener("open", () => {
      if (this.cut) this.take("live", {});
      this.cut = false;
    });
    source.addEventListener("reset", () => this.open());
    source.addEventListener("signed_out", (event) => {
      this.close();
      session.signedOut(JSON.parse(/** @type {MessageEvent} */ (event).data).detail ?? "", "");
    });
    source.addEventListener("error", () => {
      if (this.source !== source || this.stopped) return;
      this.lost("the gateway does not answer");
      // A stream that was refused is not tried again by the browser.
      if (source.readyState === EventSource.CLOSED)
        setTimeout(() => this.source === source && !this.stopped && this.open(), AGAIN_MS);
    });
  }

  /** @param {string} why */
  lost(why) {
    this.cut = true;
    this.take("stale", { since: this.heard || Date.now() / 1000, detail: why });
  }

  /** @param {string} kind @param {any} data */
  take(kind, data) {
    if (kind !== "stale" && kind !== "shown") this.heard = Date.now() / 1000;
    this.state = reduce(this.state, kind, data);
    if (kind === "jobs") this.gone.push(...rowsOf(data.gone));
    if (this.kinds.size === 0) setTimeout(() => this.tell(), 0);
    this.kinds.add(kind);
  }

  tell() {
    const [kinds, gone] = [this.kinds, this.gone];
    this.kinds = new Set();
    this.gone = [];
    for (const listener of [...this.listeners]) listener(this.state, kinds, gone);
  }

  close() {
    this.stopped = true;
    this.source?.close();
    this.source = null;
    this.position = "";
    this.state = EMPTY;
  }
}
