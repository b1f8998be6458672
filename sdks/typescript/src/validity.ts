/**
 * R6: until when a client may act as holder. All times are nanoseconds of this client's own clock.
 *
 * The service starts a lease's time when the request arrives, which is after it was first sent, and ends it no
 * earlier than the whole time to live after that. The client stops at 90 %, counted from before the first send.
 */

const SECOND = 1_000_000_000n;

/** What a client may count on after a lease was made or renewed by a request that was first sent at this time. */
export function validUntil(firstSentNanos: bigint, ttlSeconds: bigint): bigint {
  return firstSentNanos + ((ttlSeconds * SECOND) / 10n) * 9n;
}

/** R7: the same for a lease that was made by an acquire which waited; the service counts the wait. */
export function validUntilAfterWait(firstSentNanos: bigint, waitedMs: bigint, ttlSeconds: bigint): bigint {
  return validUntil(firstSentNanos + ((waitedMs * 1_000_000n) / 10n) * 9n, ttlSeconds);
}

/** Until when a grant with a limit is believed in, unless its lease ends before. Nothing extends it. */
export function heldUntil(firstSentNanos: bigint, waitedMs: bigint, maxHoldSeconds: bigint): bigint {
  return validUntilAfterWait(firstSentNanos, waitedMs, maxHoldSeconds);
}

/** The validity of one lease. It grows by renewals that are answered in time, and once it is over it stays over. */
export class Validity {
  readonly #ttlSeconds: bigint;
  #until: bigint;
  #isOver = false;

  constructor(untilNanos: bigint, ttlSeconds: bigint) {
    this.#ttlSeconds = ttlSeconds;
    this.#until = untilNanos;
  }

  /**
   * A renewal that was first sent at one time was acknowledged at another. Answers may overtake each other: a
   * late one takes nothing away, and one that comes after the end revives nothing.
   */
  renewed(firstSentNanos: bigint, answeredNanos: bigint): void {
    if (!this.holdsAt(answeredNanos)) return;
    const until = validUntil(firstSentNanos, this.#ttlSeconds);
    if (until > this.#until) this.#until = until;
  }

  /** Ends it for good. */
  end(): void {
    this.#isOver = true;
  }

  /** Until when, if it does not end before. */
  get untilNanos(): bigint {
    return this.#until;
  }

  /** Whether the client may act as holder at this time. If not, it never may again. */
  holdsAt(nowNanos: bigint): boolean {
    if (nowNanos >= this.#until) this.#isOver = true;
    return !this.#isOver;
  }
}
