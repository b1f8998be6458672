/**
 * The clock that validity is counted by (R6): one that also goes on while the machine is suspended.
 *
 * Node offers `CLOCK_MONOTONIC` only, which stands still during suspend on Linux. `/proc/uptime` is the time
 * since boot, suspend included, in steps of 10 ms. So both are read. When the uptime has gone on further, the
 * machine was suspended, and that time is added.
 *
 * On other systems `process.hrtime` is all there is. On macOS and Windows it also stands still during sleep,
 * or may: a client that slept for longer than its lease lived then learns of the loss only when a node answers.
 */
import { closeSync, openSync, readSync } from "node:fs";

/** The resolution of `/proc/uptime`. */
const TICK_NANOS = 10_000_000n;

/** Reads nanoseconds since boot, or `undefined` where that is not known. */
export type Uptime = () => bigint | undefined;

/** A monotonic clock that counts time in suspend. */
export class Clock {
  readonly #monotonic: () => bigint;
  readonly #uptime: Uptime;
  /** Uptime less monotonic time at the beginning. In a container the uptime may be that of the container. */
  readonly #difference: bigint | undefined;
  /** Added to the monotonic time at the beginning, so that the clock reads as `CLOCK_BOOTTIME` does. */
  readonly #before: bigint;
  /** How long the machine was suspended since then. It only ever grows. */
  #suspended = 0n;

  constructor(monotonic: () => bigint, uptime: Uptime) {
    this.#monotonic = monotonic;
    this.#uptime = uptime;
    const up = uptime();
    this.#difference = up === undefined ? undefined : up - monotonic();
    this.#before = this.#difference !== undefined && this.#difference > TICK_NANOS ? this.#difference : 0n;
  }

  /** Nanoseconds since some fixed moment. */
  now(): bigint {
    // The uptime first: a pause between the two readings then never looks like a suspend.
    const up = this.#difference === undefined ? undefined : this.#uptime();
    const monotonic = this.#monotonic();
    if (up !== undefined && this.#difference !== undefined) {
      const gap = up - this.#difference - monotonic - this.#suspended;
      // Up to one tick is the resolution of the uptime. Beyond that one tick is added, so that the suspended
      // time is never taken for shorter than it was.
      if (gap > TICK_NANOS) this.#suspended += gap + TICK_NANOS;
    }
    return monotonic + this.#before + this.#suspended;
  }
}

/** Reads `/proc/uptime` by a file that stays open; `undefined` where there is no such file. */
export function procUptime(path = "/proc/uptime"): Uptime {
  let file: number | undefined;
  const buffer = Buffer.alloc(64);
  try {
    file = openSync(path, "r");
  } catch {
    return () => undefined;
  }
  return () => {
    if (file === undefined) return undefined;
    try {
      const text = buffer.toString("latin1", 0, readSync(file, buffer, 0, buffer.length, 0));
      const match = /^(\d+)\.(\d\d) /.exec(text);
      if (!match) return undefined;
      return BigInt(match[1] ?? 0) * 1_000_000_000n + BigInt(match[2] ?? 0) * TICK_NANOS;
    } catch {
      closeSync(file);
      file = undefined;
      return undefined;
    }
  };
}

const clock = new Clock(
  () => process.hrtime.bigint(),
  process.platform === "linux" ? procUptime() : () => undefined,
);

/** Nanoseconds since some fixed moment, suspend included. */
export function nowNanos(): bigint {
  return clock.now();
}

/** Nanoseconds in a millisecond. */
export const MILLISECOND = 1_000_000n;
