/** What all sessions of a client share: the cluster, the keeper, and calls that go on in the background. */
import { setMaxListeners } from "node:events";
import { nowNanos } from "./clock.js";
import type { Cluster, Fields } from "./cluster.js";
import { LowkeyError } from "./errors.js";
import type { Keeper } from "./keeper.js";
import type { Presence } from "./presence.js";

/** How long a call that nobody waits for keeps the process alive. */
const FAREWELL_MS = 1_000;
/** One round of such a call; there may be many. */
const TELL_ROUND_MS = 10_000;

export class Inner {
  readonly cluster: Cluster;
  readonly keeper: Keeper;
  readonly owner: string;
  readonly callTimeoutMs: number;
  readonly #told = new Set<Promise<void>>();
  readonly #ended = new AbortController();

  constructor(cluster: Cluster, keeper: Keeper, owner: string, callTimeoutMs: number) {
    this.cluster = cluster;
    this.keeper = keeper;
    this.owner = owner;
    this.callTimeoutMs = callTimeoutMs;
    // As many listeners as there are calls under way.
    setMaxListeners(0, this.#ended.signal);
  }

  /**
   * A call that changes something, whose answer its caller waits for. `begin` is called right before each copy is
   * sent, and not while the call is in line.
   */
  change(path: string, fields: Fields, signal?: AbortSignal, begin?: () => void): Promise<Fields> {
    const timeMs = this.callTimeoutMs;
    const body = (): Fields => {
      begin?.();
      return fields;
    };
    return this.cluster.call({ method: "POST", path, body, changesSomething: true, timeMs, signal });
  }

  /** A call that changes nothing. */
  read(path: string, query: Record<string, string>, signal?: AbortSignal): Promise<Fields> {
    const timeMs = this.callTimeoutMs;
    const target = `${path}?${new URLSearchParams(query).toString()}`;
    return this.cluster.call({ method: "GET", path: target, changesSomething: false, timeMs, signal });
  }

  /** Releases in the background what nobody here wants. `done` is called when that is settled. */
  tellRelease(presence: Presence, body: Fields, done: () => void): void {
    const isNeedless = (): boolean => presence.lossCause === "gone" || isLongLost(presence);
    this.#tell(presence.releases.run(() => this.#insist("/v1/lock/release", body, isNeedless)).then(done));
  }

  /** Ends a lease in the background. */
  tellRevoke(presence: Presence, body: Fields): void {
    this.#tell(this.#insist("/v1/lease/revoke", body, () => isLongLost(presence)));
  }

  /** Work in the background that {@link Inner.flush} waits for. */
  tellWork(work: Promise<void>): void {
    this.#tell(work);
  }

  #tell(work: Promise<void>): void {
    const told = work
      .catch(() => undefined)
      .finally(() => {
        this.#told.delete(told);
      });
    this.#told.add(told);
  }

  /** Repeats a call until it is answered, or needless. Only at first it keeps the process alive. */
  async #insist(path: string, body: Fields, isNeedless: () => boolean): Promise<void> {
    const call = { method: "POST", path, body: () => body, changesSomething: true } as const;
    const signal = this.#ended.signal;
    for (let isFirst = true; !isNeedless(); isFirst = false) {
      const timeMs = isFirst ? FAREWELL_MS : TELL_ROUND_MS;
      try {
        await this.cluster.call({ ...call, timeMs, quiet: !isFirst, signal });
        return;
      } catch (error) {
        if (signal.aborted || !(error instanceof LowkeyError) || !error.retryable) return;
      }
    }
  }

  /** Resolves when nothing is left to tell. */
  async flush(): Promise<void> {
    while (this.#told.size > 0) await Promise.all(this.#told);
  }

  get hasTold(): boolean {
    return this.#told.size > 0;
  }

  /** Ends everything, answered or not. */
  close(): void {
    this.#ended.abort();
    this.keeper.close();
    this.cluster.close();
  }
}

/** Nobody renews a lost lease: after its time to live the service has forgotten it. */
function isLongLost(presence: Presence): boolean {
  const lostAt = presence.lostAtNanos;
  return presence.lossCause !== undefined && lostAt !== undefined && nowNanos() > lostAt + presence.ttlNanos * 2n;
}
