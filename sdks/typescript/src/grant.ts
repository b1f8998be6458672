/** A grant, held by one guard or shared by several of one session. */
import { nowNanos } from "./clock.js";
import type { Turn } from "./door.js";
import { LockLostError, type LossCause, LowkeyError, SessionLostError } from "./errors.js";
import type { Inner } from "./inner.js";
import type { Presence } from "./presence.js";
import { requestId } from "./random.js";
import type { Mode, Scope } from "./wire.js";

/** What a guard is told when belief ends. */
export interface Believer {
  beliefEnded(cause: LossCause): void;
}

/** What the service said of a grant. */
export interface Granted {
  readonly name: string;
  readonly mode: Mode;
  readonly scope: Scope;
  readonly token: bigint;
  readonly revision: bigint;
  readonly waitedMs: number;
  /** Belief ends here at the latest, by the client's own clock; `undefined` without a limit. Nothing moves it. */
  readonly untilNanos: bigint | undefined;
}

/** The service does not, or no longer, have the grant. */
const NOT_HELD = new Set(["LOCK_NOT_FOUND", "NOT_OWNER", "STALE_TOKEN", "LEASE_NOT_FOUND"]);

/** Whether it is held follows from the clock and from `ended`. Nothing else is remembered. */
export class Grant {
  readonly granted: Granted;
  readonly presence: Presence;
  readonly inner: Inner;
  readonly #turn: Turn<Grant>;
  readonly #believers = new Set<Believer>();
  #ended: LossCause | undefined;
  /** The service said that it has it no longer. */
  #isGone = false;

  constructor(inner: Inner, presence: Presence, granted: Granted, turn: Turn<Grant>) {
    this.inner = inner;
    this.presence = presence;
    this.granted = granted;
    this.#turn = turn;
    presence.beliefs.add(granted.token, this);
  }

  get isHeld(): boolean {
    const { untilNanos } = this.granted;
    if (this.#ended === undefined && untilNanos !== undefined && nowNanos() >= untilNanos) this.#outlive();
    return this.#ended === undefined && this.presence.isValid;
  }

  /** How long it is held for certain if nothing more is heard, in milliseconds. */
  get remainingMs(): number {
    if (!this.isHeld) return 0;
    const { untilNanos } = this.granted;
    const ofLease = this.presence.remainingMs;
    return untilNanos === undefined ? ofLease : Math.min(ofLease, Math.max(Number(untilNanos - nowNanos()) / 1e6, 0));
  }

  /** Why it is no longer held; `undefined` while it is. */
  get lossCause(): LossCause | undefined {
    if (this.isHeld) return undefined;
    return this.#ended ?? this.presence.lossCause;
  }

  join(believer: Believer): void {
    this.#believers.add(believer);
  }

  /** A guard is gone. Returns whether it was the last one. */
  leave(believer: Believer): boolean {
    this.#believers.delete(believer);
    return this.#believers.size === 0;
  }

  /** Belief ends, for all guards. Only the first cause counts. */
  end(cause: LossCause): void {
    if (this.#ended !== undefined) return;
    this.#ended = cause;
    this.presence.beliefs.remove(this.granted.token);
    for (const believer of [...this.#believers]) believer.beliefEnded(cause);
  }

  /**
   * Its own time is over, although its lease goes on. The service has it still, for a tenth of that time, so the
   * token is told on, and the name is not free until it is released or gone.
   */
  #outlive(): void {
    this.#ended = "held_too_long";
    for (const believer of [...this.#believers]) believer.beliefEnded("held_too_long");
  }

  /** The service no longer has the grant, although its lease goes on. */
  releasedElsewhere(): void {
    // Those who ask for the name from now on wait until it is free, instead of finding a holder.
    this.#turn.leaving();
    this.#isGone = true;
    this.end("released_elsewhere");
    this.#turn.end();
  }

  /**
   * R9: belief ends, and then the release is sent. It carries the token, so that it never ends a newer grant.
   * If no node answers in time, it goes on in the background. So it does from the beginning if the session has
   * expired: then nobody answers, as a rule.
   */
  async release(): Promise<void> {
    const lost = this.lossCause;
    this.#turn.leaving();
    this.end("closed");
    if (lost === "gone" || lost === "closed" || lost === "released_elsewhere") {
      this.#turn.end();
      if (lost === "closed") return;
      throw lost === "gone" ? new SessionLostError(lost) : this.#notHeldError();
    }
    const body = releaseByToken(this.granted.name, this.presence.leaseId, this.granted.token);
    if (lost === "held_too_long") {
      this.presence.beliefs.remove(this.granted.token);
      if (!this.#isGone) this.#releaseInBackground(body);
      throw new LockLostError(this.granted.name, this.granted.token, lost);
    }
    if (lost === "expired") {
      this.#releaseInBackground(body);
      throw new SessionLostError(lost);
    }
    try {
      await this.inner.change("/v1/lock/release", body);
      this.#turn.end();
    } catch (error) {
      this.#releaseFailed(error, body);
    }
  }

  #releaseFailed(error: unknown, body: Record<string, unknown>): void {
    if (!(error instanceof LowkeyError) || error.retryable) {
      this.#releaseInBackground(body);
      throw error;
    }
    this.#turn.end();
    if (error.reason === "LEASE_NOT_FOUND" && this.presence.lossCause !== "closed") {
      this.presence.lose("gone");
      throw new SessionLostError("gone");
    }
    // Perhaps a copy of this same release arrived before, or the session was closed on purpose.
    const isExpected = error.mayHaveBeenDone || this.presence.lossCause === "closed";
    if (!(NOT_HELD.has(error.reason ?? "") && isExpected)) throw error;
  }

  #releaseInBackground(body: Record<string, unknown>): void {
    this.inner.tellRelease(this.presence, body, () => {
      this.#turn.end();
    });
  }

  #notHeldError(): LowkeyError {
    const { name, token } = this.granted;
    return new LowkeyError(`lock ${name} (token ${token.toString()}) was released by somebody else before`);
  }
}

/** R9: a release always carries the token. */
export function releaseByToken(name: string, leaseId: bigint, token: bigint): Record<string, unknown> {
  return { lock_name: name, lease_id: leaseId, fencing_token: token, request_id: requestId() };
}
