/** Randomness: unique ids, and pauses that differ between clients. */
import { randomBytes } from "node:crypto";

/** An id for one operation. */
export function requestId(): string {
  return randomBytes(16).toString("hex");
}

/** A short tag that distinguishes two processes of one name. */
export function tag(): string {
  return randomBytes(4).toString("hex");
}

/** A random number of milliseconds between zero and this bound. */
export function upTo(boundMs: number): number {
  return Math.random() * boundMs;
}

const FIRST_BOUND_MS = 20;
const LAST_BOUND_MS = 500;
const HINT_MAX_MS = 1_000;

/**
 * The pause before attempt `attempt + 1`: a random share of a bound that doubles ("full jitter"), and a quarter
 * of what the service hinted at.
 */
export function pauseMs(attempt: number, share: number, hintMs: number): number {
  const bound = Math.min(FIRST_BOUND_MS * 2 ** Math.min(attempt, 16), LAST_BOUND_MS);
  return share * bound + Math.min(hintMs, HINT_MAX_MS) / 4;
}

/** Pauses between the attempts of one call. */
export class Backoff {
  #attempt = 0;

  /** The next pause, in milliseconds. */
  pause(hintMs = 0): number {
    const pause = pauseMs(this.#attempt, Math.random(), hintMs);
    this.#attempt += 1;
    return pause;
  }
}
