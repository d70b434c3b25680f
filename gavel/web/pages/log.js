// @ts-check
// The output of a job, live: every rank and attempt, found in, paused, wrapped, downloaded. All of it is text nodes.

import { jobUrl, withQuery } from "./api.js";
import { h, patch } from "./dom.js";
import { ansi } from "./values.js";

/** How much output the page keeps; the download has all of it. */
const KEPT = 1 << 20;
/** How many last lines are shown at first. */
const TAIL = 1000;
/** What a line costs besides its text, so that empty lines are bounded, too. */
const LINE_COST = 32;
/** One line is cut here; a file without line ends is no reason to lose the page. */
const LINE = 4096;

/** @typedef {{rank: string, text: string, style: string, note?: boolean, node?: HTMLElement}} Line */

/**
 * Lines of several ranks from pieces that may end anywhere; a carriage return begins its line again.
 */
export class Lines {
  constructor() {
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Map<string, Line>} */
    this.unfinished = new Map();
    this.size = 0;
    this.dropped = 0;
  }

  /** @param {string} rank @param {string} text @returns {Line[]} the lines that are new or changed */
  add(rank, text) {
    const touched = new Set();
    let line = this.unfinished.get(rank);
    for (const [index, part] of text.split("\n").entries()) {
      if (index > 0) {
        if (!line) touched.add((line = this.begin(rank, "")));
        line = undefined;
      }
      if (!part) continue;
      if (!line) line = this.begin(rank, "");
      const old = line.text.length;
      const written = (line.text + part.replace(/\r+$/, "")).split("\r").at(-1) ?? "";
      line.text = written.length > LINE ? `${written.slice(0, LINE)}… (the line is cut here)` : written;
      this.size += line.text.length - old;
      touched.add(line);
    }
    if (line) this.unfinished.set(rank, line);
    else this.unfinished.delete(rank);
    return [...touched];
  }

  /** @param {string} rank @param {string} text @param {boolean} [note] */
  begin(rank, text, note = false) {
    const line = { rank, text, style: "", note };
    this.lines.push(line);
    this.size += text.length + LINE_COST;
    return line;
  }

  /** Leave out the oldest lines beyond what is kept. @param {number} [most] @returns {Line[]} */
  trim(most = KEPT) {
    let count = 0;
    for (; this.size > most && count < this.lines.length - 1; count++) {
      this.size -= this.lines[count].text.length + LINE_COST;
    }
    this.dropped += count;
    return this.lines.splice(0, count);
  }
}

export class LogPane {
  /** @param {string} job */
  constructor(job) {
    this.job = job;
    this.rank = "";
    this.attempt = "";
    this.paused = false;
    this.ended = false;
    this.state = "";
    /** @type {EventSource | null} */
    this.source = null;
    /** The latest event that arrived. */
    this.position = "";
    this.lines = new Lines();
    /** @type {Set<string>} */
    this.notices = new Set();
    /** @type {Set<Line>} */
    this.fresh = new Set();
    this.tools = h("div", { class: "head" });
    this.box = h("div", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Output" });
    this.search = h("input", {
      type: "search",
      placeholder: "Find",
      "aria-label": "Find in the output",
      size: 12,
      oninput: () => this.find(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        this.next(event.shiftKey ? -1 : 1);
      },
    });
    this.hits = /** @type {Line[]} */ ([]);
    this.hit = -1;
    this.node = h("section", { "aria-label": "Output", key: "log", "data-keep": "" }, this.tools, this.box);
    this.ranks = 1;
    this.attempts = 0;
    this.look = this.look.bind(this);
    document.addEventListener("visibilitychange", this.look);
  }

  /** @param {number} attempts @param {number} ranks */
  show(attempts, ranks) {
    const started = this.attempts === 0 && attempts > 0;
    [this.attempts, this.ranks] = [attempts, Math.max(ranks, this.ranks)];
    if (started) this.open();
    this.draw();
  }

  draw() {
    const option = (/** @type {string} */ value, /** @type {string} */ label, /** @type {string} */ chosen) =>
      h("option", { value, selected: value === chosen }, label);
    patch(
      this.tools,
      h("h2", null, "Output"),
      h("span", { class: "small muted" }, this.state),
      h(
        "div",
        { class: "push tools" },
        this.search,
        this.hits.length > 0 && h("span", { class: "small muted" }, `${this.hit + 1} of ${this.hits.length}`),
        h(
          "select",
          {
            "aria-label": "Attempt",
            onchange: (/** @type {any} */ event) => this.choose({ attempt: event.target.value }),
          },
          option("", "all attempts", this.attempt),
          Array.from({ length: this.attempts }, (_, at) => option(String(at + 1), `attempt ${at + 1}`, this.attempt)),
        ),
        this.ranks > 1 &&
          h(
            "select",
            {
              "aria-label": "Rank",
              onchange: (/** @type {any} */ event) => this.choose({ rank: event.target.value }),
            },
            option("", "all ranks", this.rank),
            Array.from({ length: this.ranks }, (_, at) => option(String(at), `rank ${at}`, this.rank)),
          ),
        h(
          "button",
          { type: "button", "aria-pressed": String(this.paused), onclick: () => this.pause() },
          this.paused ? "Go on" : "Pause",
        ),
        h(
          "label",
          { class: "check small" },
          h("input", {
            type: "checkbox",
            checked: !this.box.classList.contains("nowrap"),
            onchange: () => this.box.classList.toggle("nowrap"),
          }),
          "Wrap",
        ),
        h(
          "a",
          {
            class: "button",
            href: withQuery(`${jobUrl(this.job)}/logs.txt`, { attempt: this.attempt, rank: this.rank }),
            download: `job-${this.job}.txt`,
          },
          "Download",
        ),
      ),
    );
  }

  /** @param {{attempt?: string, rank?: string}} choice */
  choose(choice) {
    Object.assign(this, choice);
    this.open();
    this.draw();
  }

  pause() {
    this.paused = !this.paused;
    if (!this.paused) this.paint();
    this.draw();
  }

  /** Read the output from its last lines on. */
  open() {
    this.clear();
    this.position = "";
    this.ended = false;
    this.follow();
  }

  clear() {
    this.lines = new Lines();
    this.notices.clear();
    this.fresh.clear();
    this.box.replaceChildren();
  }

  /** Close the stream when the page is hidden, as live.js does, and go on where it was when the page is shown. */
  look() {
    if (this.attempts === 0 || this.ended) return;
    if (document.hidden) {
      this.source?.close();
      this.source = null;
    } else if (!this.source) this.follow();
  }

  /** Follow the output after the latest event. */
  follow() {
    this.source?.close();
    this.source = null;
    if (document.hidden) return;
    const url = withQuery(`${jobUrl(this.job)}/logs`, {
      attempt: this.attempt,
      rank: this.rank,
      tail_lines: TAIL,
      follow: true,
      after: this.position,
    });
    const source = (this.source = new EventSource(url));
    const on = (/** @type {string} */ kind, /** @type {(data: any) => void} */ take) =>
      source.addEventListener(kind, (event) => {
        if (!("data" in event)) return;
        const { data, lastEventId } = /** @type {MessageEvent} */ (event);
        this.position = lastEventId || this.position;
        take(JSON.parse(data));
      });
    on("reset", () => this.clear());
    on("log", ({ rank, text }) => this.add(this.lines.add(String(rank), text)));
    // A stream that goes on after an event repeats its notices.
    on("notice", ({ attempt, text }) => {
      const notice = `${attempt} ${text}`;
      if (this.notices.has(notice)) return;
      this.notices.add(notice);
      this.add([this.lines.begin("", text, true)]);
    });
    on("cut", () => this.say("cut at 1 MiB; the download has all of it"));
    on("error", (problem) => this.say(problem.detail ?? ""));
    on("end", () => {
      source.close();
      this.ended = true;
      this.say("complete");
    });
    source.addEventListener("open", () => this.say("live"));
    source.addEventListener("error", (event) => {
      if ("data" in event || this.source !== source) return;
      this.say("the stream is lost; trying again");
      if (source.readyState === EventSource.CLOSED) this.ask(url);
    });
  }

  /** Say why a stream was refused, and try again later. @param {string} url */
  async ask(url) {
    const source = this.source;
    const stop = new AbortController();
    let wait = 3000;
    try {
      const answer = await fetch(url, { signal: stop.signal });
      if (!answer.ok) {
        const problem = await answer.json();
        this.say(problem.detail ?? problem.title ?? "");
        if (answer.status === 403) return;
        wait = Math.max(wait, 1000 * (problem.retry_s ?? 0));
      }
    } catch {
      this.say("the gateway cannot be reached");
    } finally {
      stop.abort();
    }
    setTimeout(() => this.source === source && this.open(), wait);
  }

  /** @param {string} state */
  say(state) {
    this.state = this.lines.dropped
      ? `${state}; ${this.lines.dropped.toLocaleString("en")} older lines are left out here`
      : state;
    this.draw();
  }

  /** @param {Line[]} lines */
  add(lines) {
    if (this.fresh.size === 0 && !this.paused) requestAnimationFrame(() => this.paint());
    for (const line of lines) this.fresh.add(line);
    // Nothing is painted while the pane is paused, and a fast job must not fill the memory meanwhile.
    if (this.lines.size > 2 * KEPT) this.forget();
  }

  paint() {
    if (this.paused) return;
    const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    const before = this.lines.dropped;
    this.forget();
    const added = document.createDocumentFragment();
    for (const line of this.fresh) {
      const node = this.lineNode(line);
      if (line.node) line.node.replaceWith(node);
      else added.append(node);
      line.node = node;
    }
    this.fresh.clear();
    this.box.append(added);
    if (this.search.value) this.find();
    if (atEnd) this.box.scrollTop = this.box.scrollHeight;
    if (this.lines.dropped > before) this.say(this.state.split(";")[0]);
  }

  /** Leave out the oldest lines. */
  forget() {
    for (const line of this.lines.trim()) {
      line.node?.remove();
      this.fresh.delete(line);
    }
  }

  /** @param {Line} line */
  lineNode(line) {
    if (line.note) return h("span", { class: "line note" }, line.text);
    return h(
      "span",
      { class: "line" },
      this.ranks > 1 && h("span", { class: "rank" }, `${line.rank} `),
      ansi(line.text).pieces.map(({ text, style }) => (style ? h("span", { class: style }, text) : text)),
    );
  }

  find() {
    const wanted = this.search.value.toLowerCase();
    for (const line of this.hits) if (line.node) line.node.classList.remove("hit");
    this.hits = wanted
      ? this.lines.lines.filter((line) =>
          ansi(line.text)
            .pieces.map((piece) => piece.text)
            .join("")
            .toLowerCase()
            .includes(wanted),
        )
      : [];
    this.hit = Math.min(this.hit, this.hits.length - 1);
    for (const line of this.hits) line.node?.classList.add("hit");
    this.draw();
  }

  /** @param {number} step */
  next(step) {
    if (this.hits.length === 0) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    this.hits[this.hit].node?.scrollIntoView({ block: "center" });
    this.draw();
  }

  stop() {
    document.removeEventListener("visibilitychange", this.look);
    this.source?.close();
    this.source = null;
  }
}
