/**
 * HTTP and HTTPS to one node: connections that stay open, and one request with a time limit.
 *
 * It decides nothing about retries. It reports whether a request was sent at all, because only then its outcome
 * is in doubt.
 */
import * as http from "node:http";
import * as https from "node:https";
import { checkServerIdentity } from "node:tls";
import type { Credentials } from "./credentials.js";
import { TIMER_MAX_MS } from "./sleep.js";

/** The most that is read of an answer. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024;
/** How long an idle connection is kept. */
const IDLE_MS = 30_000;

/** A request to one node. */
export interface NodeRequest {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly body?: string | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** How long the answer may take, connecting included. */
  readonly timeMs: number;
  readonly signal?: AbortSignal | undefined;
  /** The request does not keep the process alive. */
  readonly quiet?: boolean | undefined;
}

/** An answer of a node, or of a proxy before it. */
export interface NodeAnswer {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly text: string;
}

/** There was no answer. */
export class NoAnswer extends Error {
  /** The request was sent, or may have been. */
  readonly sent: boolean;

  constructor(problem: string, sent: boolean) {
    super(problem);
    this.sent = sent;
  }
}

/** One address of a cluster. */
export class Endpoint {
  #url: URL;
  readonly #credentials: Credentials;
  #agent: http.Agent | https.Agent;
  #generation: number;
  /** When it last answered, by `performance.now()`. */
  heardAt = Number.NEGATIVE_INFINITY;
  /** It belongs to another cluster. */
  foreignCluster: string | undefined;

  constructor(url: URL, credentials: Credentials) {
    this.#url = url;
    this.#credentials = credentials;
    this.#generation = credentials.generation;
    this.#agent = this.#makeAgent();
  }

  get url(): string {
    return this.#url.origin;
  }

  /** The node said that its HTTP port is elsewhere. Returns false if it is here. */
  moveTo(hostAndPort: string): boolean {
    if (!URL.canParse(`${this.#url.protocol}//${hostAndPort}`)) return false;
    const url = new URL(`${this.#url.protocol}//${hostAndPort}`);
    if (url.origin === this.#url.origin) return false;
    this.#url = url;
    return true;
  }

  #makeAgent(): http.Agent | https.Agent {
    const pool = { keepAlive: true, maxFreeSockets: 64, timeout: IDLE_MS, scheduling: "lifo" as const };
    if (this.#url.protocol === "http:") return new http.Agent(pool);
    return new https.Agent({ ...pool, ...this.#credentials.tls, minVersion: "TLSv1.2", checkServerIdentity });
  }

  #freshAgent(): http.Agent | https.Agent {
    this.#credentials.refresh();
    if (this.#generation !== this.#credentials.generation) {
      // Requests that are under way end on their old connections.
      closeIdle(this.#agent);
      this.#generation = this.#credentials.generation;
      this.#agent = this.#makeAgent();
    }
    return this.#agent;
  }

  #open(request: NodeRequest): http.ClientRequest {
    const headers: Record<string, string> = { ...request.headers };
    // Before the agent, which looks for a new token too.
    const agent = this.#freshAgent();
    const authorization = this.#credentials.authorization;
    if (authorization !== undefined) headers["authorization"] = authorization;
    if (request.body !== undefined) {
      headers["content-type"] = "application/json";
      headers["content-length"] = String(Buffer.byteLength(request.body));
    }
    const options = { method: request.method, headers, agent };
    const url = new URL(request.path, this.#url);
    return this.#url.protocol === "http:" ? http.request(url, options) : https.request(url, options);
  }

  /** Sends a request and reads the whole answer. Rejects with {@link NoAnswer}. */
  ask(request: NodeRequest): Promise<NodeAnswer> {
    return new Promise((resolve, reject) => {
      this.#exchange(request, reject, (response, end) => {
        const chunks: Buffer[] = [];
        let size = 0;
        response.on("data", (chunk: Buffer) => {
          chunks.push(chunk);
          size += chunk.length;
          if (size > ANSWER_BYTES_MAX) end("the answer is too large");
        });
        response.on("end", () => {
          end();
          this.heardAt = performance.now();
          const text = Buffer.concat(chunks).toString("utf8");
          resolve({ status: response.statusCode ?? 0, headers: response.headers, text });
        });
      });
    });
  }

  /** Sends a request, and hands its answer over when it begins. Rejects with {@link NoAnswer}. */
  open(request: NodeRequest): Promise<http.IncomingMessage> {
    return new Promise((resolve, reject) => {
      this.#exchange(request, reject, (response, end) => {
        this.heardAt = performance.now();
        end();
        resolve(response);
      });
    });
  }

  /** The part that `ask` and `open` share: time limit, signal, and what is known when nothing comes. */
  #exchange(
    request: NodeRequest,
    reject: (failure: Error) => void,
    begun: (response: http.IncomingMessage, end: (problem?: string) => void) => void,
  ): void {
    let opened: http.ClientRequest;
    try {
      opened = this.#open(request);
    } catch (error) {
      reject(new NoAnswer(describe(error), false));
      return;
    }
    let isSent = false;
    let isOver = false;
    const end = (problem?: string): void => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      request.signal?.removeEventListener("abort", aborted);
      if (problem === undefined) return;
      reject(new NoAnswer(`${this.url}: ${problem}`, isSent));
      opened.destroy();
    };
    const aborted = (): void => {
      end("it was given up");
    };
    const timer = setTimeout(() => {
      end(isSent ? "no answer in time" : "no connection in time");
    }, Math.min(request.timeMs, TIMER_MAX_MS));
    if (request.quiet) timer.unref();
    request.signal?.addEventListener("abort", aborted, { once: true });
    opened.on("socket", (socket) => {
      if (request.quiet) socket.unref();
      if (opened.reusedSocket) isSent = true;
      else socket.once(this.#url.protocol === "http:" ? "connect" : "secureConnect", () => (isSent = true));
    });
    opened.on("error", (error) => {
      end(describe(error));
    });
    opened.on("response", (response) => {
      response.on("error", (error) => {
        end(describe(error));
      });
      response.on("close", () => {
        end("the connection broke within the answer");
      });
      begun(response, end);
    });
    if (request.signal?.aborted) aborted();
    else opened.end(request.body);
  }

  close(): void {
    this.#agent.destroy();
  }
}

function closeIdle(agent: http.Agent): void {
  for (const sockets of Object.values(agent.freeSockets)) sockets?.forEach((socket) => socket.destroy());
}

function describe(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(describe).join("; ");
  if (!(error instanceof Error)) return String(error);
  const { code } = error as NodeJS.ErrnoException;
  return error.message || (code ?? error.name);
}
