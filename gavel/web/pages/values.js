// @ts-check
// How values read: numbers, times, durations, names of users. Pure, as are the colours in colors.js.

const CUT = 160;
// Control characters, and marks that turn the direction of text around.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/**
 * Text of a user in one line: what cannot be seen is shown as ␀-like pictures, and long text is cut.
 * @param {unknown} value
 * @param {number} [limit]
 */
export function plain(value, limit = CUT) {
  const text = String(value ?? "").replace(UNSEEN, (mark) =>
    mark < " " ? String.fromCharCode(0x2400 + mark.charCodeAt(0)) : "�",
  );
  const letters = Array.from(text.length > limit * 4 ? text.slice(0, limit * 4) : text);
  return letters.length > limit
    ? `${letters.slice(0, limit).join("")}… (${text.length.toLocaleString("en")} characters)`
    : text;
}

/** A word with a capital letter. @param {string} word */
export const capital = (word) => word[0].toUpperCase() + word.slice(1);

/**
 * A duration in whole units, as the command line writes it: 40s, 12m, 3h05m, 2d4h.
 * @param {number} seconds
 */
export function span(seconds) {
  const length = Math.max(Math.round(seconds), 0);
  if (length < 60) return `${length}s`;
  if (length < 3600) return `${Math.floor(length / 60)}m`;
  if (length < 86400)
    return `${Math.floor(length / 3600)}h${String(Math.floor((length % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(length / 86400)}d${Math.floor((length % 86400) / 3600)}h`;
}

/**
 * @param {number | null | undefined} at
 * @param {number} now
 */
export function ago(at, now) {
  if (!at) return "";
  return now - at < -1 ? `in ${span(at - now)}` : `${span(now - at)} ago`;
}

/**
 * A time of day in the zone of the reader, with its date unless that is today.
 * @param {number | null | undefined} at
 */
export function clock(at) {
  if (!at) return "";
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${isoDay(date)} ${time}`;
}

/** @param {Date} date */
export function isoDay(date) {
  return `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;
}

/**
 * A number to three digits: 0.0123, 12.3, 12,345, 1.2M.
 * @param {number | null | undefined} value
 */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim((value / (size >= 1e9 ? 1e9 : 1e6)).toPrecision(3))}${size >= 1e9 ? "G" : "M"}`;
  if (size >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return trim(value.toPrecision(3));
}

/** @param {string} digits */
const trim = (digits) =>
  digits.includes("e") ? String(Number(digits)) : digits.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");

/**
 * @param {number} count
 * @param {string} thing
 */
export const countOf = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;

/** @param {number} part */
export const percent = (part) => `${Math.round(part * 100)} %`;

/**
 * GPU time in hours.
 * @param {number} seconds
 */
export const gpuHours = (seconds) => (seconds >= 3600 ? `${number(seconds / 3600)} h` : span(seconds));

/**
 * A time of the protocol, as seconds since 1970; undefined for none.
 * @param {unknown} value
 * @returns {number | undefined}
 */
export function seconds(value) {
  if (value === null || value === undefined || value === "") return undefined;
  const at = typeof value === "number" ? value : Date.parse(String(value)) / 1000;
  return Number.isFinite(at) && at > 0 ? at : undefined;
}

/**
 * A name of an enumeration as a word: JOB_STATE_RUNNING is running.
 * @param {unknown} value
 * @param {string} prefix
 */
export const word = (value, prefix) =>
  String(value ?? "")
    .replace(prefix, "")
    .toLowerCase();

/**
 * A command as a shell would need it, for reading.
 * @param {string[]} words
 */
export const shellWords = (words) =>
  words.map((part) => (/^[\w@%+=:,./-]+$/.test(part) ? part : `'${part.replaceAll("'", "'\\''")}'`)).join(" ");

/**
 * The sequences by which terminals colour text, as pieces with the name of a class; other sequences are left out.
 * @param {string} text
 * @param {string} style  what an earlier piece left in force
 * @returns {{pieces: {text: string, style: string}[], style: string}}
 */
export function ansi(text, style = "") {
  const pieces = [];
  let from = 0;
  for (const match of text.matchAll(
    /\u001b(?:\[([0-9;?]*)([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\^_])/g,
  )) {
    if (match.index > from) pieces.push({ text: text.slice(from, match.index), style });
    from = match.index + match[0].length;
    if (match[2] === "m") style = (match[1] || "0").split(";").reduce(styled, style);
  }
  if (from < text.length) pieces.push({ text: text.slice(from), style });
  return { pieces, style };
}

/**
 * @param {string} style
 * @param {string} code
 */
function styled(style, code) {
  const parts = new Set(style.split(" ").filter(Boolean));
  const value = Number(code);
  const color = value >= 30 && value <= 37 ? value - 30 : value >= 90 && value <= 97 ? value - 90 : -1;
  if (value === 0) parts.clear();
  else if (value === 1) parts.add("bold");
  else if (value === 22) parts.delete("bold");
  if (color >= 0 || value === 39) for (const part of [...parts]) if (part.startsWith("ansi-")) parts.delete(part);
  if (color >= 0) parts.add(`ansi-${color}`);
  return [...parts].sort().join(" ");
}
