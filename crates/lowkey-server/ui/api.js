// The public API, by `fetch`. This page can do nothing that another client could not.

/** The bearer token. It is kept here and nowhere else: it is gone when the page is. */
let token = "";
let askForToken = async () => false;

/** Who asks the user for a token: called with whether one was refused, resolves to the token or to nothing. */
export function setLogin(ask) {
  let asking = null;
  askForToken = (refused) => {
    if (isDeclined) return Promise.resolve(false);
    asking ??= ask(refused).then((given) => {
      asking = null;
      isDeclined = !given;
      // One that was refused is of no use.
      token = given ?? "";
      return Boolean(given);
    });
    return asking;
  };
}

/** The user does not want to log in: the page asks no more by itself. */
let isDeclined = false;

export function logIn() {
  isDeclined = false;
  return askForToken(false);
}

export const isLoggedIn = () => token !== "";

export function logOut() {
  token = "";
  isDeclined = true;
}

/** An answer that is an error, or none at all (status 0). */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.message ?? `the node answered with status ${status}`);
    this.status = status;
    this.reason = body?.reason ?? "";
    this.metadata = body?.details?.find((detail) => detail.metadata)?.metadata ?? {};
  }

  get isRefusal() {
    return this.status === 403;
  }

  /** The node does not know the call: it is of another version, or lacks the part that answers it. */
  get isUnknownCall() {
    return this.status === 404 && this.reason === "NO_SUCH_ROUTE" || this.status === 405 || this.status === 501;
  }
}

const me = () => call("GET", "/v1/access/whoami").catch(() => ({}));

/** Who this page is to the cluster; nothing where nobody is asked. */
export const whoAmI = async () => (await me()).principal ?? "";

/** What to ask for, to see all that begins with a prefix and that one may `verb`: { prefixes, names }. A grant covers
 * a name and all below it. Where nothing is granted, the node is asked as it stands, and says why not. */
export async function mine(verb, prefix) {
  const { required, grants } = await me();
  const all = (grants ?? []).filter((grant) => grant.verbs.includes(verb)).map((grant) => grant.path);
  if (!required || all.includes("/")) return { prefixes: [prefix], names: [] };
  const [prefixes, names] = [[], []];
  for (const path of all.filter((path) => !all.some((other) => path.startsWith(`${other}/`)))) {
    const below = `${path}/`;
    if (prefix.startsWith(below)) prefixes.push(prefix);
    else if (path.startsWith(prefix)) {
      prefixes.push(below);
      names.push(path);
    }
  }
  return prefixes.length ? { prefixes, names } : { prefixes: [prefix], names };
}

/** So many streams a view may have open: browsers allow six connections to a node, and reads need some. */
export const STREAMS = 2;

/** As whom this page acts, in events. A principal acts as itself or as something below it. */
export async function actor() {
  const principal = await whoAmI();
  return principal ? `${principal}/dashboard` : "dashboard";
}

/** How long an answer may take. Every call of this page is a short one. */
const PATIENCE_MS = 8000;

function address(path, params) {
  const given = Object.entries(params ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

async function send(method, path, { params, body, signal, accept } = {}) {
  for (let attempt = 0; ; attempt += 1) {
    const used = token;
    const headers = { accept: accept ?? "application/json" };
    if (used) headers.authorization = `Bearer ${used}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(address(path, params), {
        method, headers, signal, cache: "no-store", credentials: "same-origin", redirect: "error",
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw signal.reason;
      throw new ApiError(0, { message: `the node does not answer (${error.message})` });
    }
    // With another token by now, or after the user has given one, it is worth another try.
    if (response.status === 401 && attempt < 3 && (used !== token || (await askForToken(used !== "")))) continue;
    if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
    return response;
  }
}

async function call(method, path, options = {}) {
  const signals = [AbortSignal.timeout(PATIENCE_MS), options.signal].filter(Boolean);
  const response = await send(method, path, { ...options, signal: AbortSignal.any(signals) });
  try {
    return await response.json();
  } catch (error) {
    throw options.signal?.aborted ? error : new ApiError(0, { message: "the node's answer broke off" });
  }
}

export const get = (path, params, signal) => call("GET", path, { params, signal });
export const post = (path, body) => call("POST", path, { body });
export const remove = (path) => call("DELETE", path);

/** A stream's parts between empty lines. It must say something at least this often: nodes do so every 5 s. */
const SILENCE_MS = 15_000;

/** The text of an answer, line by line. */
export async function* lines(path, params, signal, accept) {
  const silence = new AbortController();
  const both = AbortSignal.any([silence.signal, signal]);
  const silent = () => silence.abort(new DOMException("silence", "TimeoutError"));
  let timer = setTimeout(silent, SILENCE_MS);
  try {
    const response = await send("GET", path, { params, signal: both, accept });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      let chunk;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (signal.aborted) throw error;
        throw new ApiError(0, { message: "the connection broke" });
      }
      if (chunk.done) break;
      clearTimeout(timer);
      timer = setTimeout(silent, SILENCE_MS);
      const parts = (rest + chunk.value).split("\n");
      rest = parts.pop();
      yield parts;
    }
    if (rest) yield [rest];
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

/** Server-sent events, several at a time: what has arrived together is told together. EventSource has no way
 * to send a token. */
export async function* events(path, params, signal) {
  let kind = "";
  for await (const some of lines(path, params, signal, "text/event-stream")) {
    const found = [];
    for (const line of some) {
      if (line === "") kind = "";
      else if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) {
        const data = JSON.parse(line.slice(6));
        if (kind === "error") {
          if (found.length) yield found;
          throw new ApiError(410, data);
        }
        found.push(data);
      }
    }
    if (found.length) yield found;
  }
}

/** Where a watch goes on behind an event. Positions are texts for the node to read, not numbers: theirs are too large. */
export const behind = (event) => ({ after: event.position || `${event.revision}.${event.ordinal}` });

/** Resolves after some time, or when the signal aborts. */
export const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
});
