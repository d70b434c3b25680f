// @ts-check
// Calls to the gateway. A refused call throws a Problem, whose message says what is wrong and names the field.

/** A call that was refused, or that got no answer. */
export class Problem extends Error {
  /** @param {number} status @param {Record<string, any>} body */
  constructor(status, body) {
    const where = body.field ? `${body.field}: ` : body.line ? `line ${body.line}: ` : "";
    super(`${where}${body.detail || body.title || `the gateway answered ${status}`}`);
    this.status = status;
    this.reason = String(body.reason ?? "");
    this.body = body;
  }
}

/** Called with the reason when the session has ended. @type {{signedOut: (detail: string, mode: string) => void}} */
export const session = { signedOut: () => {} };

/**
 * @param {string} method
 * @param {string} path
 * @param {any} [body]  text is sent as a job file, anything else as JSON
 * @param {Record<string, string>} [headers]
 */
export async function call(method, path, body, headers = {}) {
  const text = typeof body === "string";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: {
        ...(method === "GET" ? {} : { "X-Gavel": "1" }),
        ...(body === undefined ? {} : { "Content-Type": text ? "application/yaml" : "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : text ? body : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0, { reason: "unreachable", detail: "the gateway cannot be reached; is gavel web running?" });
  }
  if (answer.status === 204) return null;
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  if (answer.status === 401 && path !== "/session") session.signedOut(content.detail ?? "", content.mode ?? "");
  throw new Problem(answer.status, content);
}

/** @param {string} path @param {Record<string, any>} [query] */
export const get = (path, query) => call("GET", withQuery(path, query));

/**
 * @param {string} path
 * @param {Record<string, any>} [query]  empty values are left out, arrays are repeated
 */
export function withQuery(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") parameters.append(name, String(one));
    }
  }
  return parameters.size ? `${path}?${parameters}` : path;
}

/** @param {string} job */
export const jobUrl = (job) => `/v1/jobs/${encodeURIComponent(job)}`;

/** @param {string} node */
export const nodeUrl = (node) => `/v1/nodes/${encodeURIComponent(node)}`;

/**
 * Send the same command for several jobs, four at a time; jobs that refuse it are returned with the reason.
 * While the gateway says that these are too many, they come more slowly.
 * @param {string[]} jobs
 * @param {string} action  cancel, hold, release or requeue
 * @returns {Promise<{done: number, refused: {job: string, why: string}[]}>}
 */
export async function commandJobs(jobs, action) {
  const waiting = [...jobs];
  const refused = /** @type {{job: string, why: string}[]} */ ([]);
  const work = async () => {
    for (let job = waiting.shift(); job !== undefined; job = waiting.shift()) {
      try {
        await call("POST", `${jobUrl(job)}:${action}`);
      } catch (error) {
        const { status, body, message } = /** @type {Problem} */ (error);
        if (status === 429) {
          waiting.push(job);
          await new Promise((resolve) => setTimeout(resolve, 1000 * (body.retry_s ?? 1)));
        } else refused.push({ job, why: message });
      }
    }
  };
  await Promise.all([work(), work(), work(), work()]);
  return { done: jobs.length - refused.length, refused };
}

/**
 * Every item of a list that comes in pages, up to a limit.
 * @param {string} path @param {Record<string, any>} query @param {string} field @param {number} limit
 */
export async function pages(path, query, field, limit) {
  /** @type {any[]} */
  const items = [];
  let token = "";
  do {
    const page = await get(path, { ...query, page_token: token, page_size: Math.min(limit - items.length, 1000) });
    items.push(...page[field]);
    token = page.next_page_token;
  } while (token && items.length < limit);
  return { items, more: Boolean(token) };
}

/**
 * The role includes the other one.
 * @param {string} role @param {string} needed
 */
export function may(role, needed) {
  const roles = ["viewer", "user", "operator", "admin"];
  return roles.indexOf(role) >= roles.indexOf(needed);
}
