/** What is known of one lease, shared by its session, its guards and the keeper. */
import { setMaxListeners } from "node:events";
import { Beliefs } from "./beliefs.js";
import { nowNanos } from "./clock.js";
import { Doors } from "./door.js";
import { BeliefEndedError, type LossCause, SessionLostError } from "./errors.js";
import type { Grant } from "./grant.js";
import { Lane } from "./lane.js";
import type { Endpoint } from "./transport.js";
import { Validity } from "./validity.js";

/** How many releases of one lease that nobody waits for are on the way at once; a lease may have 128 in all. */
const RELEASES_AT_ONCE = 64;

/** A renewal that is not answered yet. */
export interface RenewalUnderWay {
  readonly endpoint: Endpoint;
  readonly sentNanos: bigint;
  isDoubted: boolean;
}

export class Presence {
  readonly leaseId: bigint;
  readonly ttlNanos: bigint;
  readonly validity: Validity;
  readonly beliefs = new Beliefs<Grant>();
  readonly doors = new Doors<Grant>();
  readonly releases = new Lane(RELEASES_AT_ONCE);
  readonly #controller = new AbortController();
  #lossCause: LossCause | undefined;
  /** When it was lost, by the client's clock. */
  lostAtNanos: bigint | undefined;

  /** For the keeper alone. */
  nextRenewalNanos: bigint;
  readonly renewals = new Set<RenewalUnderWay>();
  renewalsInLine = 0;
  isBeingRead = false;

  constructor(leaseId: bigint, ttlSeconds: bigint, untilNanos: bigint) {
    // As many listeners as there are calls under way, and those of users.
    setMaxListeners(0, this.#controller.signal);
    this.leaseId = leaseId;
    this.ttlNanos = ttlSeconds * 1_000_000_000n;
    this.validity = new Validity(untilNanos, ttlSeconds);
    // Validity is 90 % of the time to live, which gives the time of creation.
    this.nextRenewalNanos = untilNanos - (this.ttlNanos / 10n) * 9n + this.ttlNanos / 3n;
  }

  /** Whether its holder may act on it now. Reads the clock, so it is right even before the keeper noticed a loss. */
  get isValid(): boolean {
    if (this.#lossCause !== undefined) return false;
    if (this.validity.holdsAt(nowNanos())) return true;
    this.lose("expired");
    return false;
  }

  /** How long it stays valid if nothing more is heard, in milliseconds. */
  get remainingMs(): number {
    if (!this.isValid) return 0;
    return Math.max(Number(this.validity.untilNanos - nowNanos()) / 1e6, 0);
  }

  /** Why it is lost; `undefined` while it is not. */
  get lossCause(): LossCause | undefined {
    return this.isValid ? undefined : this.#lossCause;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Marks the lease as lost. Only the first cause counts. */
  lose(cause: LossCause): void {
    if (this.#lossCause !== undefined) return;
    // From here on nothing of it is held, whoever asks. Signals come after that.
    this.#lossCause = cause;
    this.validity.end();
    this.lostAtNanos = nowNanos();
    for (const grant of this.beliefs.grants) grant.end(cause);
    this.#controller.abort(new BeliefEndedError("the session", cause));
  }

  /** Throws if the lease is lost. */
  check(): void {
    const cause = this.lossCause;
    if (cause !== undefined) throw new SessionLostError(cause);
  }
}
