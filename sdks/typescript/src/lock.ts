/** Locks: how one is asked for, and the guard of one that is held. */
import { setMaxListeners } from "node:events";
import { inspect } from "node:util";
import { nowNanos } from "./clock.js";
import type { Entry, Turn, Way } from "./door.js";
import {
  BeliefEndedError,
  InvalidArgumentError,
  LockHeldError,
  LockLostError,
  type LossCause,
  LowkeyError,
  SessionLostError,
  UnavailableError,
  WaitTimeoutError,
} from "./errors.js";
import { Grant } from "./grant.js";
import type { Inner } from "./inner.js";
import type { Presence } from "./presence.js";
import { requestId } from "./random.js";
import { TIMER_MAX_MS } from "./sleep.js";
import { heldUntil } from "./validity.js";
import { type Mode, Reader, type Scope } from "./wire.js";

/** The longest that the service lets a call wait. */
const WAIT_MAX_MS = 86_400_000;

/** The longest limit of how long a lock is held, in seconds: a week. */
const AT_MOST_MAX = 604_800;

/** How a lock is wanted. */
export interface TryLockOptions {
  /** Gives up the wish. A grant that came meanwhile is released, and the call rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** `exclusive` (the default), or `shared`: together with others that share it. */
  readonly mode?: Mode | undefined;
  /** `name` (the default), or `subtree`: the name and everything below it. */
  readonly scope?: Scope | undefined;
  /** A text to show with the grant, at most 4096 bytes. */
  readonly value?: string | undefined;
  /**
   * For how long it is held at most, however well its lease is renewed: 1 to 604,800 whole seconds. It ends a job that
   * hangs: the guard is lost at 90 % of it, counted from before the question, and the session lives on.
   */
  readonly atMostSeconds?: number | undefined;
}

/** How a lock is wanted, and how long to wait for it. */
export interface LockOptions extends TryLockOptions {
  /** How long to wait, in milliseconds; left out: as long as it takes. 0 does not wait at all. */
  readonly timeoutMs?: number | undefined;
}

/**
 * A lock that is held, until it is released or lost.
 *
 * Ask {@link LockGuard.held} before every step that matters, pass {@link LockGuard.signal} to what can be
 * cancelled, and send {@link LockGuard.token} along with every write: the resource can then refuse a write that
 * comes too late.
 *
 * With `await using` it is released at the end of the block.
 *
 * Guards of one session that hold one name in shared mode share one grant and its token. The grant is released
 * with the last of them.
 */
export class LockGuard implements AsyncDisposable {
  /** @internal */
  protected readonly grant: Grant;
  readonly #controller = new AbortController();
  #released: Promise<void> | undefined;

  /** @internal */
  constructor(grant: Grant) {
    this.grant = grant;
    grant.join(this);
  }

  /** The lock's name. */
  get name(): string {
    return this.grant.granted.name;
  }

  /** How it is held. */
  get mode(): Mode {
    return this.grant.granted.mode;
  }

  /** What it covers. */
  get scope(): Scope {
    return this.grant.granted.scope;
  }

  /** The fencing token. It rises with every grant. Send it along with every write that the lock protects. */
  get token(): bigint {
    return this.grant.granted.token;
  }

  /** The revision at which it was granted. */
  get revision(): bigint {
    return this.grant.granted.revision;
  }

  /** The lease that holds it. */
  get leaseId(): bigint {
    return this.grant.presence.leaseId;
  }

  /** How long the lock was waited for, as the service reports it. */
  get waitedMs(): number {
    return this.grant.granted.waitedMs;
  }

  /**
   * Whether you may act as holder now. Reads the clock: a process that was paused for too long, or whose event
   * loop was blocked, gets `false` from the first question on.
   */
  get held(): boolean {
    return !this.#controller.signal.aborted && this.grant.isHeld;
  }

  /** How long it is held for certain if no further renewal is acknowledged, in milliseconds. */
  get remainingMs(): number {
    return this.held ? this.grant.remainingMs : 0;
  }

  /**
   * Aborts when the lock is lost, and when it is released, before the service hears of that. Work that goes on
   * after it may run beside the next holder. Its reason is a {@link BeliefEndedError}.
   */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Why it is no longer held; `undefined` while it is. */
  get lossCause(): LossCause | undefined {
    const reason: unknown = this.#controller.signal.reason;
    return reason instanceof BeliefEndedError ? reason.lossCause : this.grant.lossCause;
  }

  /** Throws a {@link LockLostError} if the lock is not held now. */
  check(): void {
    const cause = this.held ? undefined : this.lossCause;
    if (cause !== undefined) throw new LockLostError(this.name, this.token, cause);
  }

  /** Resolves when it is no longer held, with the cause. The process stays alive until then. */
  async lost(): Promise<LossCause> {
    if (this.held) {
      const rest = this.grant.inner.keeper.stayAwake();
      await new Promise((resolve) => {
        this.signal.addEventListener("abort", resolve, { once: true });
      });
      rest();
    }
    return this.lossCause ?? "closed";
  }

  /**
   * Runs the work, and rejects with a {@link LockLostError} as soon as the lock is lost. The work cannot be
   * stopped from outside: it should heed the signal that it is given.
   *
   * A rejection does *not* mean that nothing was written. Only the resource that checks the token knows.
   */
  async run<T>(work: (signal: AbortSignal) => Promise<T> | T): Promise<T> {
    this.check();
    const rest = this.grant.inner.keeper.stayAwake();
    let stop: (() => void) | undefined;
    const isOver = new Promise<never>((_resolve, reject) => {
      stop = () => {
        reject(new LockLostError(this.name, this.token, this.lossCause ?? "closed"));
      };
      this.signal.addEventListener("abort", stop, { once: true });
    });
    try {
      const result = await Promise.race([work(this.signal), isOver]);
      // The work may have blocked the event loop for longer than the lease lived.
      this.check();
      return result;
    } finally {
      if (stop) this.signal.removeEventListener("abort", stop);
      rest();
    }
  }

  /**
   * Releases the lock, and waits until that is done. Belief ends first: `held` is false from the moment of this
   * call on. If no node answers in time, it rejects, and the client keeps trying in the background.
   *
   * A rejection may also say that the lock was not held any more: then the work since that was not protected.
   */
  release(): Promise<void> {
    this.#released ??= this.#release();
    return this.#released;
  }

  #release(): Promise<void> {
    const isLast = this.grant.leave(this);
    this.beliefEnded("closed");
    return isLast ? this.grant.release() : Promise.resolve();
  }

  /** Releases the lock. It never rejects: what goes wrong is tried again in the background. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => undefined);
  }

  /** @internal */
  beliefEnded(cause: LossCause): void {
    if (this.#controller.signal.aborted) return;
    this.#controller.abort(new BeliefEndedError(`lock ${this.name} (token ${this.token.toString()})`, cause));
  }
}

/** Checks what callers without types may get wrong. */
function checkOptions(name: unknown, options: Readonly<Record<keyof LockOptions, unknown>>): void {
  const { mode, scope, value, timeoutMs, atMostSeconds } = options;
  if (typeof name !== "string" || name === "") throw new InvalidArgumentError("a lock needs a name: 1 to 512 bytes");
  if (mode !== undefined && mode !== "exclusive" && mode !== "shared") {
    throw new InvalidArgumentError(`mode is "exclusive" or "shared", not ${inspect(mode)}`);
  }
  if (scope !== undefined && scope !== "name" && scope !== "subtree") {
    throw new InvalidArgumentError(`scope is "name" or "subtree", not ${inspect(scope)}`);
  }
  if (value !== undefined && typeof value !== "string") throw new InvalidArgumentError("value is a text");
  const isLimit = Number.isInteger(atMostSeconds) && (atMostSeconds as number) >= 1 && (atMostSeconds as number) <= AT_MOST_MAX;
  if (atMostSeconds !== undefined && !isLimit) {
    throw new InvalidArgumentError(`atMostSeconds is a whole number, 1 to ${AT_MOST_MAX.toString()}, not ${inspect(atMostSeconds)}`);
  }
  if (timeoutMs !== undefined && !(typeof timeoutMs === "number" && timeoutMs >= 0)) {
    throw new InvalidArgumentError(`timeoutMs is a number of milliseconds from 0, not ${inspect(timeoutMs)}`);
  }
}

/** What makes a caller stop waiting: its own signal, the loss of the session, or the end of its time. */
class Stop {
  readonly #controller = new AbortController();
  readonly #sources: readonly AbortSignal[];
  readonly #timer: NodeJS.Timeout | undefined;
  readonly #abort = (): void => {
    this.#controller.abort();
  };

  constructor(sources: readonly (AbortSignal | undefined)[], timeMs: number | undefined) {
    this.#sources = sources.filter((source) => source !== undefined);
    for (const source of this.#sources) {
      // One signal may be given to any number of calls: that is no leak.
      setMaxListeners(0, source);
      if (source.aborted) this.#abort();
      else source.addEventListener("abort", this.#abort, { once: true });
    }
    if (timeMs !== undefined) this.#timer = setTimeout(this.#abort, Math.min(timeMs, TIMER_MAX_MS));
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  end(): void {
    clearTimeout(this.#timer);
    for (const source of this.#sources) source.removeEventListener("abort", this.#abort);
  }
}

/** One wish for a lock. */
export class Acquire {
  readonly #inner: Inner;
  readonly #presence: Presence;
  readonly #name: string;
  readonly #options: LockOptions;
  readonly #way: Way;
  /** When the wish ends, by `performance.now()`. */
  readonly #deadline: number | undefined;

  constructor(inner: Inner, presence: Presence, name: string, options: LockOptions) {
    const { mode, scope, value, timeoutMs, signal, atMostSeconds } = options;
    checkOptions(name, { mode, scope, value, timeoutMs, signal, atMostSeconds });
    this.#inner = inner;
    this.#presence = presence;
    this.#name = name;
    this.#options = options;
    this.#way = { mode: mode ?? "exclusive", scope: scope ?? "name", isLimited: atMostSeconds !== undefined };
    this.#deadline = timeoutMs === undefined ? undefined : performance.now() + timeoutMs;
  }

  get #isTry(): boolean {
    return this.#options.timeoutMs === 0;
  }

  /** What is left of the wait, in milliseconds. At least a moment: who wants to wait gets into the queue. */
  get #leftMs(): number {
    if (this.#isTry) return 0;
    if (this.#deadline === undefined) return WAIT_MAX_MS;
    return Math.min(Math.max(Math.ceil(this.#deadline - performance.now()), 1), WAIT_MAX_MS);
  }

  /** Acquires the lock, and makes the guard. */
  async run<G extends LockGuard>(guard: (grant: Grant) => G): Promise<G> {
    for (;;) {
      this.#options.signal?.throwIfAborted();
      this.#presence.check();
      const entry = await this.#enter();
      if (entry.kind === "busy") throw this.#heldHere(entry.grant);
      if (entry.kind === "share") {
        // It may have been released since it was offered.
        if (!entry.grant.isHeld) continue;
        return guard(entry.grant);
      }
      const grant = await this.#ask(entry.turn);
      if (grant) return guard(grant);
    }
  }

  /** Waits until nobody else of this session has the name. */
  async #enter(): Promise<Entry<Grant>> {
    const timeMs = this.#isTry ? this.#inner.callTimeoutMs : this.#deadline === undefined ? undefined : this.#leftMs;
    const stop = new Stop([this.#options.signal, this.#presence.signal], timeMs);
    try {
      const entry = await this.#presence.doors.enter(this.#name, this.#way, this.#isTry, stop.signal);
      if (entry && !stop.signal.aborted) return entry;
      if (entry?.kind === "turn") entry.turn.end();
      throw this.#stopped();
    } finally {
      stop.end();
    }
  }

  #stopped(): unknown {
    if (this.#options.signal?.aborted) return this.#options.signal.reason;
    const cause = this.#presence.lossCause;
    if (cause !== undefined) return new SessionLostError(cause);
    if (this.#isTry) return this.#heldHere(undefined);
    return new WaitTimeoutError("the time to wait is over: this same session has the lock, or asks for it", undefined);
  }

  /** Another caller of this same session holds the lock, or is about to. */
  #heldHere(grant: Grant | undefined): LowkeyError {
    const leaseId = this.#presence.leaseId;
    const heldBy = {
      name: this.#name,
      owner: this.#inner.owner,
      leaseId,
      token: grant?.granted.token ?? 0n,
      sinceUnixMs: 0,
      waiters: 0,
    };
    return new LockHeldError(`${this.#name} is held by this same session, lease ${leaseId.toString()}`, heldBy);
  }

  /** Asks the service. Resolves to `undefined` if it should be asked anew. */
  async #ask(turn: Turn<Grant>): Promise<Grant | undefined> {
    const id = requestId();
    const stop = new Stop([this.#options.signal, this.#presence.signal], undefined);
    try {
      const firstSent = nowNanos();
      const answer = new Reader(await this.#call(id, stop.signal));
      const token = answer.required("fencingToken");
      // R7: a grant is valid only within the validity of its lease. The caller may have gone meanwhile, too.
      if (stop.signal.aborted || !this.#presence.isValid) throw this.#stopped();
      const { atMostSeconds } = this.#options;
      const waitedMs = answer.number("waitedMs");
      // R6: from before the first send; every attempt has the same request id.
      const untilNanos =
        atMostSeconds === undefined ? undefined : heldUntil(firstSent, BigInt(waitedMs), BigInt(atMostSeconds));
      if (untilNanos !== undefined && nowNanos() >= untilNanos) throw new UnavailableError("its time was over before the answer came", { outcomeUnknown: true });
      const { mode, scope } = this.#way;
      const revision = answer.bigint("revision");
      const granted = { name: this.#name, mode, scope, token, revision, waitedMs, untilNanos };
      const grant = new Grant(this.#inner, this.#presence, granted, turn);
      if (untilNanos !== undefined) this.#inner.keeper.limit(grant);
      turn.held(this.#way, grant);
      return grant;
    } catch (error) {
      const isRefused = error instanceof LowkeyError && !stop.signal.aborted && !error.mayHaveBeenDone;
      if (isRefused && !(error instanceof SessionLostError)) turn.end();
      else this.#giveUp(id, turn);
      this.#checkRefusal(error, stop.signal.aborted);
      return undefined;
    } finally {
      stop.end();
    }
  }

  #call(id: string, signal: AbortSignal): Promise<Record<string, unknown>> {
    const waitMs = this.#leftMs;
    const { value, atMostSeconds } = this.#options;
    const body = (): Record<string, unknown> => ({
      lock_name: this.#name,
      owner_id: this.#inner.owner,
      lease_id: this.#presence.leaseId,
      wait_ms: this.#leftMs,
      ...(this.#way.mode === "shared" ? { mode: "SHARED" } : {}),
      ...(this.#way.scope === "subtree" ? { scope: "SUBTREE" } : {}),
      ...(value === undefined ? {} : { value }),
      ...(atMostSeconds === undefined ? {} : { max_hold_seconds: atMostSeconds }),
      request_id: id,
    });
    return this.#inner.cluster.call({
      method: "POST",
      path: "/v1/lock/acquire",
      body,
      changesSomething: true,
      timeMs: waitMs + this.#inner.callTimeoutMs,
      waits: !this.#isTry,
      signal,
    });
  }

  /** Throws what the caller is told, unless a wait without limit has only reached the service's own. */
  #checkRefusal(error: unknown, isStopped: boolean): void {
    if (isStopped) throw this.#stopped();
    if (error instanceof WaitTimeoutError && this.#deadline === undefined) return;
    if (error instanceof LowkeyError && error.reason === "LEASE_NOT_FOUND") {
      this.#presence.lose("gone");
      throw new SessionLostError(this.#presence.lossCause ?? "gone");
    }
    throw error;
  }

  /**
   * Nobody wants the answer any more: the grant that the acquire may have led to is released by its request id.
   * Until that is certain nobody else of the session may ask for the name: the same lease would be given the
   * same grant, and would lose it by this release.
   */
  #giveUp(id: string, turn: Turn<Grant>): void {
    this.#presence.beliefs.giveUp(id);
    turn.leaving();
    const body = {
      lock_name: this.#name,
      lease_id: this.#presence.leaseId,
      acquire_request_id: id,
      request_id: requestId(),
    };
    this.#inner.tellRelease(this.#presence, body, () => {
      turn.end();
    });
  }
}
