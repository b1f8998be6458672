/**
 * A cluster, seen through its endpoints: calls that are repeated until they are answered or their time is up.
 *
 * - A call that gets no answer goes to the next endpoint, with the same request id.
 * - The endpoint of the leader is preferred, as it saves a hop. Any node takes any call.
 * - Answers of another cluster than the first are never used.
 * - Which endpoint is asked is decided when a call begins, not when it got in line: a node that hangs holds up
 *   those who asked it, and nobody else.
 */
import { setMaxListeners } from "node:events";
import type { IncomingMessage } from "node:http";
import type { Credentials } from "./credentials.js";
import { InvalidArgumentError, LowkeyError, WrongClusterError } from "./errors.js";
import { Lane } from "./lane.js";
import { Backoff } from "./random.js";
import { isAboutTheNode } from "./reasons.js";
import { readRefusal, type Refusal } from "./refusal.js";
import { Copies, type CopyFailure } from "./retry.js";
import { sleep } from "./sleep.js";
import { Endpoint, NoAnswer, type NodeAnswer } from "./transport.js";

/** The first copy waits this long for an answer, each further one twice as long. */
const PATIENCE_MS = 1_000;
const PATIENCE_MAX_MS = 4_000;
/** A wait is asked for anew after this time: its place in the queue is kept for 5 s. */
export const ASK_AGAIN_MS = 4_000;
/** How often to check which node leads, at most. */
const LEADER_CHECK_MS = 5_000;
const CALLS_AT_ONCE = 64;

/** The fields of an answer. */
export type Fields = Record<string, unknown>;

/** A call to the cluster. */
export interface Call {
  readonly method: "GET" | "POST";
  readonly path: string;
  /** Made anew for each copy: what is left of a wait changes. */
  readonly body?: (() => Fields) | undefined;
  readonly changesSomething: boolean;
  /** How long it may take, with all copies. */
  readonly timeMs: number;
  /** It waits for a lock, so that silence is no sign of trouble. */
  readonly waits?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Nothing about it keeps the process alive. */
  readonly quiet?: boolean | undefined;
}

/** A JSON text in which 64-bit integers are strings. */
export function toJson(fields: Fields): string {
  return JSON.stringify(fields, (_key, value: unknown) => (typeof value === "bigint" ? value.toString() : value));
}

function parseEndpoint(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isGood =
    url && /^https?:$/.test(url.protocol) && url.hostname && url.pathname === "/" && !url.search && !url.hash;
  if (!isGood || url.username || url.password) {
    throw new InvalidArgumentError(`"${text}" is no endpoint: a URL such as http://127.0.0.1:8080 is needed`);
  }
  return url;
}

/** What one copy of a call led to. */
type Outcome = { readonly kind: "done"; readonly answer: NodeAnswer } | CopyFailure;

export class Cluster {
  readonly #endpoints: Endpoint[];
  readonly #credentials: Credentials;
  readonly #lane = new Lane(CALLS_AT_ONCE);
  readonly #renewals = new Lane(CALLS_AT_ONCE);
  readonly #ended = new AbortController();
  #current = 0;
  #clusterId: string | undefined;
  #leaderCheckedAt = Number.NEGATIVE_INFINITY;
  #isCheckingLeader = false;

  constructor(endpoints: readonly string[], credentials: Credentials, clusterId: string | undefined) {
    if (endpoints.length === 0) {
      throw new InvalidArgumentError("no endpoint was given: one such as http://127.0.0.1:8080 is needed");
    }
    this.#endpoints = endpoints.map((endpoint) => new Endpoint(parseEndpoint(endpoint), credentials));
    this.#credentials = credentials;
    this.#clusterId = clusterId;
    setMaxListeners(0, this.#ended.signal);
  }

  /** The cluster's id, once a node has answered. */
  get clusterId(): string | undefined {
    return this.#clusterId;
  }

  /** The endpoint that is asked next. */
  get current(): Endpoint {
    const endpoint = this.#endpoints[this.#current];
    if (!endpoint) throw new Error("there is always an endpoint");
    return endpoint;
  }

  /** No call goes to this endpoint next, if there is another one. */
  doubt(endpoint: Endpoint): void {
    if (endpoint !== this.current) return;
    const count = this.#endpoints.length;
    for (let step = 1; step <= count; step += 1) {
      this.#current = (this.#current + 1) % count;
      if (this.current.foreignCluster === undefined) break;
    }
    // Another node leads, perhaps. Look soon.
    this.#leaderCheckedAt = Math.min(this.#leaderCheckedAt, performance.now() - LEADER_CHECK_MS + 500);
  }

  /** Makes a call, and repeats it until it is answered or its time is up. */
  async call(call: Call): Promise<Fields> {
    if (this.#ended.signal.aborted) throw new LowkeyError("the client is closed");
    const deadline = performance.now() + call.timeMs;
    const ask = (): Promise<Fields> => this.#repeat(call, deadline);
    return call.waits ? ask() : this.#lane.run(ask, call.signal);
  }

  async #repeat(call: Call, deadline: number): Promise<Fields> {
    const copies = new Copies(call.changesSomething);
    let backoff = new Backoff();
    let patienceMs = PATIENCE_MS;
    for (;;) {
      call.signal?.throwIfAborted();
      this.#checkLeader();
      const endpoint = this.current;
      const begun = performance.now();
      const leftMs = deadline - begun;
      if (leftMs <= 0) throw this.#error(copies.timeIsUp());
      const outcome = await this.#send(endpoint, call, Math.min(leftMs, call.waits ? ASK_AGAIN_MS : patienceMs));
      if (outcome.kind === "done") return parseFields(outcome.answer.text);
      call.signal?.throwIfAborted();
      const error = copies.failed(outcome);
      if (error) throw error;
      const isSilentWait = call.waits && outcome.kind === "no-answer" && endpoint.heardAt >= begun;
      if (outcome.kind === "no-answer" || isAboutTheNode(outcome.refusal.reason)) {
        if (!isSilentWait) this.doubt(endpoint);
      }
      if (this.#isForeign()) throw this.#error(copies.timeIsUp());
      // A wait is asked for again at once: its place is kept for a moment only.
      const tookMs = performance.now() - begun;
      if (call.waits && tookMs >= ASK_AGAIN_MS / 2) {
        backoff = new Backoff();
        continue;
      }
      patienceMs = Math.min(patienceMs * 2, PATIENCE_MAX_MS);
      const pause = backoff.pause(outcome.kind === "refused" ? outcome.refusal.hintMs : 0);
      await sleep(Math.min(pause, Math.max(deadline - performance.now(), 0)), call.signal, call.quiet);
    }
  }

  /** One copy of a call to one endpoint. */
  async #send(endpoint: Endpoint, call: Call, timeMs: number): Promise<Outcome> {
    const { method, path, signal, quiet } = call;
    const body = call.body && toJson(call.body());
    for (let isFirst = true; ; isFirst = false) {
      let answer: NodeAnswer;
      try {
        answer = await endpoint.ask({ method, path, body, timeMs, signal, quiet });
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        return { kind: "no-answer", problem: error.message, sent: error.sent };
      }
      const outcome = this.#judge(endpoint, answer);
      if (isFirst && outcome.kind === "refused" && this.#mayAskAgain(endpoint, outcome.refusal)) continue;
      return outcome;
    }
  }

  /** Whether the same endpoint will answer differently at once: it named its HTTP port, or the token is new. */
  #mayAskAgain(endpoint: Endpoint, refusal: Refusal): boolean {
    const elsewhere = refusal.reason === "NO_SUCH_ROUTE" ? refusal.metadata["http_address"] : undefined;
    if (elsewhere !== undefined) return endpoint.moveTo(elsewhere);
    return refusal.status === 401 && this.#credentials.refresh(true);
  }

  /** What an answer means, after a look at the cluster that it came from. */
  #judge(endpoint: Endpoint, answer: NodeAnswer): Outcome {
    const isGood = answer.status >= 200 && answer.status < 300;
    const found = answer.headers["lowkey-cluster"];
    if (typeof found === "string") {
      this.#clusterId ??= found;
      endpoint.foreignCluster = found === this.#clusterId ? undefined : found;
      if (endpoint.foreignCluster !== undefined) {
        return { kind: "no-answer", problem: `${endpoint.url} belongs to another cluster`, sent: false };
      }
    } else if (isGood) {
      const problem = `${endpoint.url} is no node of lowkey: its answer names no cluster`;
      return { kind: "no-answer", problem, sent: true };
    }
    if (isGood) return { kind: "done", answer };
    const retryAfter = answer.headers["retry-after"];
    return { kind: "refused", refusal: readRefusal(answer.status, answer.text, retryAfter) };
  }

  #isForeign(): boolean {
    return this.#endpoints.every((endpoint) => endpoint.foreignCluster !== undefined);
  }

  /** The same error, or the one that says that nobody but another cluster is left. */
  #error(error: LowkeyError): LowkeyError {
    const endpoint = this.#endpoints.find((one) => one.foreignCluster !== undefined);
    if (!this.#isForeign() || endpoint?.foreignCluster === undefined) return error;
    const wrong = new WrongClusterError(endpoint.url, this.#clusterId ?? "", endpoint.foreignCluster);
    wrong.inDoubt = error.mayHaveBeenDone;
    return wrong;
  }

  /**
   * Makes one attempt of a call at the present endpoint, and nothing more: for renewals, each of which has a
   * time of its own. `begin` is called right before it is sent.
   */
  renew(call: Omit<Call, "changesSomething">, begin: (endpoint: Endpoint) => void): Promise<Outcome> {
    return this.#renewals.run(() => {
      this.#checkLeader();
      const endpoint = this.current;
      begin(endpoint);
      return this.#send(endpoint, { ...call, changesSomething: false }, call.timeMs);
    });
  }

  /** Opens a stream at the present endpoint. Resolves when it has begun, to the stream or a refusal. */
  async stream(
    path: string,
    headers: Readonly<Record<string, string>>,
    signal: AbortSignal,
  ): Promise<{ endpoint: Endpoint; outcome: CopyFailure | { kind: "stream"; stream: IncomingMessage } }> {
    const endpoint = this.current;
    try {
      const accept = { ...headers, accept: "text/event-stream" };
      const stream = await endpoint.open({ method: "GET", path, headers: accept, timeMs: PATIENCE_MAX_MS, signal });
      const isGood = stream.statusCode === 200;
      const text = isGood ? "" : await textOf(stream);
      const judged = this.#judge(endpoint, { status: stream.statusCode ?? 0, headers: stream.headers, text });
      if (judged.kind === "done") return { endpoint, outcome: { kind: "stream", stream } };
      stream.destroy();
      if (judged.kind === "refused" && this.#mayAskAgain(endpoint, judged.refusal)) {
        return await this.stream(path, headers, signal);
      }
      return { endpoint, outcome: judged };
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error;
      return { endpoint, outcome: { kind: "no-answer", problem: error.message, sent: error.sent } };
    }
  }

  /** Looks which node leads, and prefers its endpoint. At most every few seconds, and in the background. */
  #checkLeader(): void {
    const isDue = performance.now() - this.#leaderCheckedAt >= LEADER_CHECK_MS;
    if (this.#endpoints.length === 1 || !isDue || this.#isCheckingLeader || this.#ended.signal.aborted) return;
    this.#isCheckingLeader = true;
    this.#leaderCheckedAt = performance.now();
    void this.#findLeader().finally(() => (this.#isCheckingLeader = false));
  }

  async #findLeader(): Promise<void> {
    const present = this.current;
    if (await this.#leads(present)) return;
    const others = this.#endpoints.filter((endpoint) => endpoint !== present);
    await Promise.all(
      others.map(async (endpoint) => {
        if (await this.#leads(endpoint)) this.#current = this.#endpoints.indexOf(endpoint);
      }),
    );
  }

  async #leads(endpoint: Endpoint): Promise<boolean> {
    const call = { method: "GET", path: "/v1/status", changesSomething: false, timeMs: PATIENCE_MS } as const;
    const outcome = await this.#send(endpoint, { ...call, quiet: true, signal: this.#ended.signal }, PATIENCE_MS);
    return outcome.kind === "done" && parseFields(outcome.answer.text)["isLeader"] === true;
  }

  close(): void {
    this.#ended.abort();
    this.#endpoints.forEach((endpoint) => {
      endpoint.close();
    });
  }
}

async function textOf(stream: IncomingMessage): Promise<string> {
  let text = "";
  try {
    for await (const chunk of stream) {
      text += String(chunk);
      if (text.length > 65_536) break;
    }
  } catch {
    // An answer that breaks off is judged by its status.
  }
  return text;
}

/** The fields of a good answer; none if it is no JSON object, which then lacks what the caller needs. */
export function parseFields(text: string): Fields {
  try {
    const parsed: unknown = JSON.parse(text);
    return typeof parsed === "object" && parsed !== null ? (parsed as Fields) : {};
  } catch {
    return {};
  }
}
