/** Pauses that end early with a signal. */

/**
 * Resolves after this time, or as soon as the signal aborts: it never rejects. With `quiet` the timer does not
 * keep the process alive.
 */
export function sleep(ms: number, signal?: AbortSignal, quiet = false): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) {
      resolve();
      return;
    }
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    if (quiet) timer.unref();
    signal?.addEventListener("abort", end, { once: true });
  });
}

/** The longest time that a Node timer can count. */
export const TIMER_MAX_MS = 2 ** 31 - 1;
