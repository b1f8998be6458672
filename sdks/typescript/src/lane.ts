/** Limits how many calls of one kind are under way at once. The others wait in line. */
export class Lane {
  readonly #max: number;
  #underWay = 0;
  #line: (() => void)[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  /** Does the work when it is its turn. Rejects with the signal's reason if that aborts before. */
  async run<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    if (this.#underWay >= this.#max) await this.#turn(signal);
    else this.#underWay += 1;
    try {
      return await work();
    } finally {
      const next = this.#line.shift();
      // The place is handed over, so that nobody can slip in between.
      if (next) next();
      else this.#underWay -= 1;
    }
  }

  #turn(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const enter = (): void => {
        signal?.removeEventListener("abort", leave);
        resolve();
      };
      const leave = (): void => {
        this.#line = this.#line.filter((other) => other !== enter);
        reject(signal?.reason as Error);
      };
      this.#line.push(enter);
      signal?.addEventListener("abort", leave, { once: true });
    });
  }
}
