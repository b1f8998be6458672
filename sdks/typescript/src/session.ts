/** Sessions: a client's presence, renewed automatically. */
import { Leadership } from "./election.js";
import { type LossCause, LowkeyError } from "./errors.js";
import type { Inner } from "./inner.js";
import { Acquire, LockGuard, type LockOptions, type TryLockOptions } from "./lock.js";
import type { Presence } from "./presence.js";
import { requestId } from "./random.js";

/**
 * How a session stands, by this client's own clock. `jeopardy`: renewals are not being acknowledged, and if that
 * goes on, the session will be lost.
 */
export type SessionStatus = "held" | "jeopardy" | "lost";

/** How to stand for election. */
export interface CampaignOptions {
  /** What the others should know of the leader, its address say: at most 4096 bytes. */
  readonly value?: string | undefined;
  /** How long to stand, in milliseconds; left out: until elected. */
  readonly timeoutMs?: number | undefined;
  /** Ends the candidacy. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * A lease that is renewed automatically until the session is closed or lost. Locks depend on it, and end with it.
 *
 * With `await using` it is closed at the end of the block. A session that nobody closes is renewed as long as the
 * process lives. It does not keep the process alive.
 */
export class Session implements AsyncDisposable {
  readonly #inner: Inner;
  readonly #presence: Presence;
  #closed: Promise<void> | undefined;

  /** @internal */
  constructor(inner: Inner, presence: Presence) {
    this.#inner = inner;
    this.#presence = presence;
    inner.keeper.keep(presence);
  }

  /** The lease's number. */
  get leaseId(): bigint {
    return this.#presence.leaseId;
  }

  /** How long the lease lives without renewal. */
  get ttlMs(): number {
    return Number(this.#presence.ttlNanos / 1_000_000n);
  }

  /** Whether the session is valid now. Reads the clock, so that a process that was paused knows at once. */
  get held(): boolean {
    return this.#presence.isValid;
  }

  /** How the session stands now. */
  get status(): SessionStatus {
    if (!this.#presence.isValid) return "lost";
    return this.remainingMs < this.ttlMs * 0.4 ? "jeopardy" : "held";
  }

  /** How long the session is valid if no further renewal is acknowledged, in milliseconds. */
  get remainingMs(): number {
    return this.#presence.remainingMs;
  }

  /** Why the session is lost; `undefined` while it is not. */
  get lossCause(): LossCause | undefined {
    return this.#presence.lossCause;
  }

  /** Aborts when the session is lost or closed. */
  get signal(): AbortSignal {
    return this.#presence.signal;
  }

  /** Resolves when the session is lost or closed, with the cause. The process stays alive until then. */
  async lost(): Promise<LossCause> {
    if (this.held) {
      const rest = this.#inner.keeper.stayAwake();
      await new Promise((resolve) => {
        this.signal.addEventListener("abort", resolve, { once: true });
      });
      rest();
    }
    return this.lossCause ?? "closed";
  }

  /**
   * Acquires a lock, and waits for it: first come, first served.
   *
   * ```ts
   * await using guard = await session.lock("billing/nightly", { timeoutMs: 5_000 });
   * ```
   *
   * Rejects with a {@link WaitTimeoutError} after `timeoutMs`, with a {@link SessionLostError} if the session is
   * lost meanwhile, and with the signal's reason if it aborts.
   */
  async lock(name: string, options: LockOptions = {}): Promise<LockGuard> {
    return new Acquire(this.#inner, this.#presence, name, options).run((grant) => new LockGuard(grant));
  }

  /**
   * Acquires a lock if it is free now; otherwise rejects with a {@link LockHeldError} that names the holder. A
   * release of this same session that is under way does not count as a holder: the call waits for it.
   */
  async tryLock(name: string, options: TryLockOptions = {}): Promise<LockGuard> {
    return this.lock(name, { ...options, timeoutMs: 0 });
  }

  /**
   * Acquires a lock, runs the work under it, and releases it. Rejects with a {@link LockLostError} as soon as the
   * lock is lost; see {@link LockGuard.run}.
   *
   * ```ts
   * await session.withLock("billing/nightly", async (guard) => {
   *   await writeReport(guard.token, guard.signal);
   * });
   * ```
   */
  async withLock<T>(name: string, work: (guard: LockGuard) => Promise<T> | T, options: LockOptions = {}): Promise<T> {
    const guard = await this.lock(name, options);
    try {
      return await guard.run(() => work(guard));
    } finally {
      await guard[Symbol.asyncDispose]();
    }
  }

  /** Stands for election until elected. {@link Client.elect} does so again and again. */
  async campaign(election: string, options: CampaignOptions = {}): Promise<Leadership> {
    return new Acquire(this.#inner, this.#presence, election, options).run((grant) => new Leadership(grant));
  }

  /**
   * Ends the session: everything that it holds is released. Belief ends first: from the moment of this call no
   * guard of the session holds anything. If no node answers in time, it rejects, and the client keeps trying in
   * the background.
   */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    const cause = this.#presence.lossCause;
    this.#presence.lose("closed");
    this.#inner.keeper.forget(this.#presence);
    if (cause === "gone") return;
    const body = { lease_id: this.leaseId, owner_id: this.#inner.owner, request_id: requestId() };
    // An expired session is revoked too: the service may not have noticed yet. But nobody answers, as a rule.
    if (cause === "expired") {
      this.#inner.tellRevoke(this.#presence, body);
      return;
    }
    try {
      await this.#inner.change("/v1/lease/revoke", body);
    } catch (error) {
      if (error instanceof LowkeyError && error.reason === "LEASE_NOT_FOUND") return;
      if (!(error instanceof LowkeyError) || error.retryable) this.#inner.tellRevoke(this.#presence, body);
      throw error;
    }
  }

  /** Closes the session. It never rejects: what goes wrong is tried again in the background. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close().catch(() => undefined);
  }
}
