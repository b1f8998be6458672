/** What can go wrong, and what that means for the caller. */

/**
 * Why a session or a lock was lost.
 *
 * - `expired`: no renewal was acknowledged in time, by this client's own clock.
 * - `gone`: the service said that the lease is gone: it ran out there, or was revoked.
 * - `closed`: this client closed or released it.
 * - `released_elsewhere`: only for a lock whose session goes on: somebody else released it.
 * - `held_too_long`: only for a lock whose session goes on: it was held for as long as `atMostSeconds` allows.
 */
export type LossCause = "expired" | "gone" | "closed" | "released_elsewhere" | "held_too_long";

const CAUSES: Record<LossCause, string> = {
  expired: "no renewal was acknowledged in time",
  gone: "the lease is gone: it ran out, or was revoked",
  closed: "it was closed",
  released_elsewhere: "somebody else released it",
  held_too_long: "it was held for as long as it may be",
};

/** The holder of a lock that you do not get. */
export interface HeldBy {
  /** What is held: the lock itself, a subtree above it, or something below it. */
  readonly name: string;
  /** The holder's name, as it names itself. */
  readonly owner: string;
  /** The lease that holds it. */
  readonly leaseId: bigint;
  /** The fencing token of its grant. */
  readonly token: bigint;
  /** Since when, by the clock of the node that granted it. For display only. */
  readonly sinceUnixMs: number;
  /** How many wait for it. */
  readonly waiters: number;
}

/** What an error says beside its message. */
export interface ErrorFacts {
  /** The service's reason, such as `NO_LEADER`. */
  readonly reason?: string | undefined;
  /** Whether the same call may succeed if it is made again. */
  readonly retryable?: boolean;
  /** Whether the call may have been carried out although it failed. */
  readonly outcomeUnknown?: boolean;
  /** What the service said beside the reason. */
  readonly details?: Readonly<Record<string, string>>;
  /** What led to it. */
  readonly cause?: unknown;
}

/**
 * The base of all errors of this package. Decide by the class, by {@link LowkeyError.reason}, and by
 * {@link LowkeyError.outcomeUnknown}; never by the message.
 */
export class LowkeyError extends Error {
  /** The service's own reason, such as `LOCK_HELD`; `undefined` if no node refused. */
  readonly reason: string | undefined;
  /** Whether the same call may succeed if it is made again. The client has tried for as long as it could. */
  readonly retryable: boolean;
  /** Whether the call may have been carried out although it failed. */
  readonly outcomeUnknown: boolean;
  /** What the service said beside the reason, by name. */
  readonly details: Readonly<Record<string, string>>;
  /**
   * The last answer was a refusal, but an earlier copy of the same call may yet be carried out.
   * @internal
   */
  inDoubt = false;

  constructor(message: string, facts: ErrorFacts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = new.target.name;
    this.reason = facts.reason;
    this.retryable = facts.retryable ?? false;
    this.outcomeUnknown = facts.outcomeUnknown ?? false;
    this.details = facts.details ?? {};
  }

  /**
   * Whether the call, or a copy of it, may have been carried out or may yet be.
   * @internal
   */
  get mayHaveBeenDone(): boolean {
    return this.inDoubt || this.outcomeUnknown;
  }
}

/** The service refused; {@link LowkeyError.reason} says why. */
export class RefusedError extends LowkeyError {}

/** Another client holds the lock, and you did not want to wait (`LOCK_HELD`). */
export class LockHeldError extends RefusedError {
  /** The holder, as far as is known. */
  readonly heldBy: HeldBy | undefined;

  constructor(message: string, heldBy: HeldBy | undefined, facts: ErrorFacts = {}) {
    super(message, { reason: "LOCK_HELD", ...facts });
    this.heldBy = heldBy;
  }
}

/** Another client held the lock for as long as you wanted to wait (`WAIT_TIMEOUT`). */
export class WaitTimeoutError extends RefusedError {
  /** The holder, as far as is known. */
  readonly heldBy: HeldBy | undefined;

  constructor(message: string, heldBy: HeldBy | undefined, facts: ErrorFacts = {}) {
    super(message, { reason: "WAIT_TIMEOUT", ...facts });
    this.heldBy = heldBy;
  }
}

/** An argument is not valid: the message says what is allowed. */
export class InvalidArgumentError extends RefusedError {}

/** The session is lost, and with it everything that it held. Begin with a new one. */
export class SessionLostError extends LowkeyError {
  /** Why. */
  readonly lossCause: LossCause;

  constructor(lossCause: LossCause) {
    super(`the session is lost: ${CAUSES[lossCause]}`, lossCause === "gone" ? { reason: "LEASE_NOT_FOUND" } : {});
    this.lossCause = lossCause;
  }
}

/**
 * The lock was lost while work went on under it. It does *not* mean that nothing was written: only the resource
 * that checks the token knows.
 */
export class LockLostError extends LowkeyError {
  /** The lock. */
  readonly lock: string;
  /** Its fencing token. */
  readonly token: bigint;
  /** Why. */
  readonly lossCause: LossCause;

  constructor(lock: string, token: bigint, lossCause: LossCause) {
    super(`lock ${lock} (token ${token.toString()}) is lost: ${CAUSES[lossCause]}`);
    this.lock = lock;
    this.token = token;
    this.lossCause = lossCause;
  }
}

/** No node answered in time. {@link LowkeyError.outcomeUnknown} tells whether the call may have happened. */
export class UnavailableError extends LowkeyError {
  constructor(problem: string, facts: ErrorFacts = {}) {
    const doubt = facts.outcomeUnknown ? "and it may have been done" : "and nothing was done";
    super(`the service does not answer, ${doubt}: ${problem}`, { retryable: true, ...facts });
  }
}

/** An endpoint belongs to another cluster than the one that this client began with. */
export class WrongClusterError extends LowkeyError {
  /** The endpoint. */
  readonly endpoint: string;
  /** The cluster that this client began with. */
  readonly expected: string;
  /** The cluster that the endpoint belongs to. */
  readonly found: string;

  constructor(endpoint: string, expected: string, found: string) {
    super(
      `${endpoint} belongs to cluster ${found}, and this client began with ${expected}: ` +
        "locks of one mean nothing in the other",
    );
    this.endpoint = endpoint;
    this.expected = expected;
    this.found = found;
  }
}

/** Work under a lock or a session was told to stop: the reason of an aborted `signal`. */
export class BeliefEndedError extends LowkeyError {
  /** Why. */
  readonly lossCause: LossCause;

  constructor(what: string, lossCause: LossCause) {
    super(`${what} is no longer held: ${CAUSES[lossCause]}`);
    this.lossCause = lossCause;
  }
}
