/** Watches: streams that go on where they were after a reconnect, here or at another node. */
import type { IncomingMessage } from "node:http";
import type { Cluster } from "./cluster.js";
import { InvalidArgumentError, type LowkeyError } from "./errors.js";
import { Backoff } from "./random.js";
import { meaningOf } from "./reasons.js";
import { readRefusal, refusalError } from "./refusal.js";
import { sleep } from "./sleep.js";
import { EventParser, type StreamEvent } from "./sse.js";
import { type Holder, type Mode, readHolder, Reader, type Scope } from "./wire.js";

/** A stream has a sign of life every 5 s. One that is silent for this long is left. */
const SILENCE_MAX_MS = 12_000;

/** What happened to a lock. */
export type ChangeType = "ACQUIRED" | "RELEASED" | "EXPIRED" | "REVOKED" | "WAITING" | "CANCELLED" | "VALUE";

/** A change of a lock. */
export interface WatchEvent {
  readonly type: ChangeType;
  readonly name: string;
  /** The holder or waiter. */
  readonly owner: string;
  /** The grant's token; 0 for a waiter. */
  readonly token: bigint;
  readonly leaseId: bigint;
  readonly mode: Mode;
  readonly scope: Scope;
  /** The grant's value, for `ACQUIRED` and `VALUE`. */
  readonly value: string;
  /** Who asked for it, for `RELEASED` and `REVOKED`. */
  readonly actor: string;
  /** When, by the clock of a node. For display only. */
  readonly atUnixMs: number;
  /** Whether the node hears from the leader. If not, what it tells is true, but may be late. */
  readonly inTouch: boolean;
  /** `REVISION.ORDINAL`: pass it as `after` to go on behind this event. */
  readonly position: string;
}

/** Who leads an election from now on. */
export interface LeaderEvent {
  /** `ACQUIRED` or `VALUE`; `VACANT`, `RELEASED`, `EXPIRED` or `REVOKED` if nobody leads. */
  readonly type: ChangeType | "VACANT";
  /** The leader; `undefined` if nobody leads. */
  readonly leader: Holder | undefined;
  readonly revision: bigint;
  readonly inTouch: boolean;
}

/** What to watch. */
export interface WatchOptions {
  /** One lock. */
  readonly name?: string | undefined;
  /** All locks whose names begin with this. Neither this nor `name`: all locks. */
  readonly prefix?: string | undefined;
  /** The first revision that is wanted: {@link LockList.watchFrom} of a list, so that nothing is missed. */
  readonly from?: bigint | undefined;
  /** Or the last position that was seen. */
  readonly after?: string | undefined;
  /** Ends the watch: the iteration then ends without an error. */
  readonly signal?: AbortSignal | undefined;
}

/** How one kind of stream differs from another. */
interface Kind<E> {
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
  /** Whether it goes on from a position, instead of beginning with the present. */
  readonly isResumable: boolean;
  readonly read: (event: Reader, position: string) => E;
}

/**
 * A stream of events, to be read with `for await`. It reconnects by itself. If the service no longer keeps the
 * position that it would go on from, the iteration rejects with reason `COMPACTED`: list, then watch anew.
 *
 * It begins when it is made, not when it is first read. Leaving the loop ends it.
 */
export class EventStream<E> implements AsyncIterableIterator<E>, AsyncDisposable {
  readonly #cluster: Cluster;
  readonly #kind: Kind<E>;
  readonly #ended = new AbortController();
  readonly #events: E[] = [];
  readonly #begun: Promise<void>;
  #hasBegun: () => void = () => undefined;
  #wake: (() => void) | undefined;
  #resume: (() => void) | undefined;
  #error: LowkeyError | undefined;
  #isOver = false;
  #position: string | undefined;

  /** @internal */
  constructor(cluster: Cluster, kind: Kind<E>, after: string | undefined, signal: AbortSignal | undefined) {
    this.#cluster = cluster;
    this.#kind = kind;
    this.#position = after;
    this.#begun = new Promise((resolve) => (this.#hasBegun = resolve));
    const end = (): void => {
      this.#end(undefined);
    };
    if (signal?.aborted) end();
    signal?.addEventListener("abort", end, { once: true });
    this.#ended.signal.addEventListener("abort", () => signal?.removeEventListener("abort", end), { once: true });
    if (!this.#isOver) void this.#run();
  }

  /** Resolves when a node has begun to tell: no change after that is missed. Also if the stream is over. */
  get begun(): Promise<void> {
    return this.#begun;
  }

  /** The position up to which everything was told; `undefined` before the stream has begun. */
  get position(): string | undefined {
    return this.#position;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next event. */
  async next(): Promise<IteratorResult<E, undefined>> {
    for (;;) {
      const event = this.#events.shift();
      if (event !== undefined) {
        if (this.#events.length < EVENTS_WAITING_MAX / 2) this.#resume?.();
        return { done: false, value: event };
      }
      if (this.#error !== undefined) {
        const error = this.#error;
        this.#error = undefined;
        throw error;
      }
      if (this.#isOver) return { done: true, value: undefined };
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** Ends the stream. */
  return(): Promise<IteratorResult<E, undefined>> {
    this.#events.length = 0;
    this.#end(undefined);
    return Promise.resolve({ done: true, value: undefined });
  }

  /** Ends the stream. */
  close(): void {
    this.#end(undefined);
  }

  /** Ends the stream. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.return();
  }

  #end(error: LowkeyError | undefined): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#error = error;
    this.#ended.abort();
    this.#hasBegun();
    this.#wake?.();
    this.#resume?.();
  }

  async #run(): Promise<void> {
    let backoff = new Backoff();
    const { signal } = this.#ended;
    while (!signal.aborted) {
      const begun = performance.now();
      const { endpoint, outcome } = await this.#cluster.stream(this.#target(), this.#headers(), signal);
      if (outcome.kind === "stream") {
        const error = await this.#follow(outcome.stream);
        if (error) {
          this.#end(error);
          return;
        }
        // The node had told something for a while, so the next attempt need not be slow.
        if (performance.now() - begun > 1_000) backoff = new Backoff();
        this.#cluster.doubt(endpoint);
      } else if (outcome.kind === "refused" && !meaningOf(outcome.refusal.reason, outcome.refusal.status).retryable) {
        this.#end(refusalError(outcome.refusal));
        return;
      } else {
        this.#cluster.doubt(endpoint);
      }
      await sleep(backoff.pause(), signal);
    }
  }

  #target(): string {
    const query = new URLSearchParams(this.#kind.query);
    return `${this.#kind.path}?${query.toString()}`;
  }

  /** Where to go on. The header counts, and `from` in the URL then does not. */
  #headers(): Record<string, string> {
    const isKnown = this.#kind.isResumable && this.#position !== undefined;
    return isKnown && this.#position !== undefined ? { "last-event-id": this.#position } : {};
  }

  /** Follows a stream until it ends. Returns an error if another one would not do better. */
  async #follow(stream: IncomingMessage): Promise<LowkeyError | undefined> {
    const parser = new EventParser();
    const revision = stream.headers["lowkey-revision"];
    // Up to here nothing is missing, so that a stream that breaks before its first event goes on from here.
    if (!("from" in this.#kind.query) && typeof revision === "string") this.#position ??= revision;
    this.#hasBegun();
    const silence = setTimeout(() => stream.destroy(), SILENCE_MAX_MS);
    const stop = (): void => {
      stream.destroy();
    };
    this.#ended.signal.addEventListener("abort", stop, { once: true });
    try {
      for await (const chunk of stream as AsyncIterable<Uint8Array>) {
        for (const event of parser.push(chunk)) {
          const end = this.#take(event);
          if (end !== undefined) return end === "end" ? undefined : end;
        }
        if (this.#events.length >= EVENTS_WAITING_MAX) await this.#pause();
        silence.refresh();
      }
    } catch {
      // It broke off: go on elsewhere.
    } finally {
      clearTimeout(silence);
      this.#ended.signal.removeEventListener("abort", stop);
      stream.destroy();
    }
    return undefined;
  }

  /** The reader is slow: nothing more is read from the network until it has caught up. */
  async #pause(): Promise<void> {
    if (!this.#isOver) await new Promise<void>((resolve) => (this.#resume = resolve));
    this.#resume = undefined;
  }

  /** Takes one event in. Returns `end`, or the error that the stream ends with. */
  #take(event: StreamEvent): LowkeyError | "end" | undefined {
    if (event.type === "error") {
      const error = refusalError(readRefusal(500, event.data, undefined));
      return error.retryable ? "end" : error;
    }
    if (event.id !== undefined) this.#position = event.id;
    if (event.type === "end") return "end";
    if (event.type === "heartbeat") return undefined;
    let data: unknown;
    try {
      data = JSON.parse(event.data);
    } catch {
      return "end";
    }
    this.#events.push(this.#kind.read(new Reader(data), event.id ?? ""));
    this.#wake?.();
    return undefined;
  }
}

/** How many events may wait for their reader. */
const EVENTS_WAITING_MAX = 1_024;

/** Watches one lock, or all whose names begin with a prefix. */
export function watch(cluster: Cluster, options: WatchOptions): EventStream<WatchEvent> {
  const { name, prefix, from, after, signal } = options;
  if (name !== undefined && prefix !== undefined) {
    throw new InvalidArgumentError("watch a name or a prefix, not both");
  }
  if (from !== undefined && after !== undefined) {
    throw new InvalidArgumentError("watch from a revision or after a position, not both");
  }
  const query = {
    ...(name === undefined ? {} : { name }),
    ...(prefix === undefined ? {} : { prefix }),
    ...(from === undefined ? {} : { from: from.toString() }),
  };
  const kind = { path: "/v1/watch", query, isResumable: true, read: readWatchEvent };
  return new EventStream(cluster, kind, after, signal);
}

/** Observes who leads an election. */
export function observe(cluster: Cluster, election: string, signal: AbortSignal | undefined): EventStream<LeaderEvent> {
  const kind = { path: "/v1/election/observe", query: { election }, isResumable: false, read: readLeaderEvent };
  return new EventStream(cluster, kind, undefined, signal);
}

function readWatchEvent(event: Reader, position: string): WatchEvent {
  return {
    type: event.text("type") as ChangeType,
    name: event.text("name"),
    owner: event.text("owner"),
    token: event.bigint("fencingToken"),
    leaseId: event.bigint("leaseId"),
    mode: event.mode,
    scope: event.scope,
    value: event.text("value"),
    actor: event.text("actor"),
    atUnixMs: event.number("atUnixMs"),
    inTouch: event.flag("inTouch"),
    position,
  };
}

function readLeaderEvent(event: Reader): LeaderEvent {
  return {
    type: event.text("type") as LeaderEvent["type"],
    leader: event.has("leader") ? readHolder(event.one("leader")) : undefined,
    revision: event.bigint("revision"),
    inTouch: event.flag("inTouch"),
  };
}
