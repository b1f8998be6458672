/** Limits how many calls of one kind are under way at once. The others wait in line. */
export class Lane {
  readonly #max: number;
  #underWay = 0;
  readonly #line: (() => void)[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  /** Does the work when it is its turn. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#underWay >= this.#max) await new Promise<void>((resolve) => this.#line.push(resolve));
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
}
