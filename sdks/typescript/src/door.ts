/**
 * The door to one name within one session: its callers go in one after the other.
 *
 * A lease that asks twice is given the same grant twice by the service. Two guards must not share a grant by
 * accident, because the release of one would end the other. So a session asks for a name only when it neither
 * holds it, nor asks for it, nor releases it. Callers that come meanwhile wait in line here. Those that want to
 * share a name that is held in shared mode get it at once.
 */
import type { Mode, Scope } from "./wire.js";

/** How a name is wanted or held. */
export interface Way {
  readonly mode: Mode;
  readonly scope: Scope;
  /** A grant that is held for a limited time is nobody else's. */
  readonly isLimited?: boolean | undefined;
}

function canJoin(wanted: Way, held: Way): boolean {
  if (wanted.isLimited || held.isLimited) return false;
  return wanted.mode === "shared" && held.mode === "shared" && wanted.scope === held.scope;
}

/** What lets a caller in. */
export type Entry<G> =
  /** Nobody else of the session has the name: ask for it. */
  | { readonly kind: "turn"; readonly turn: Turn<G> }
  /** Another caller holds it in the same shared way. */
  | { readonly kind: "share"; readonly grant: G }
  /** Another caller has the name, or waits for it, and the wish was to wait for nobody. */
  | { readonly kind: "busy"; readonly grant: G | undefined };

interface DoorWaiter<G> {
  readonly way: Way;
  /** Waits only for what is decided soon. */
  readonly isBrief: boolean;
  readonly enter: (entry: Entry<G>) => void;
}

type Now<G> =
  | { readonly kind: "idle" }
  /** The service is being asked; `isBrief` if it answers at once. */
  | { readonly kind: "asking"; readonly isBrief: boolean }
  | { readonly kind: "held"; readonly way: Way; readonly grant: G }
  /** The name is being released. */
  | { readonly kind: "leaving" };

/** Invariant: while it is idle the line is empty. */
class Door<G> {
  now: Now<G> = { kind: "idle" };
  line: DoorWaiter<G>[] = [];

  enter(way: Way, isBrief: boolean, turn: Turn<G>, signal: AbortSignal): Entry<G> | Promise<Entry<G> | undefined> {
    const now = this.now;
    if (now.kind === "idle") {
      this.now = { kind: "asking", isBrief };
      return { kind: "turn", turn };
    }
    if (now.kind === "held") {
      // Nobody passes a waiter that cannot join: it would wait for ever while others join.
      const isFirst = this.line.every((waiter) => canJoin(waiter.way, now.way));
      if (canJoin(way, now.way) && isFirst) return { kind: "share", grant: now.grant };
      if (isBrief) return { kind: "busy", grant: now.grant };
    }
    if (now.kind === "asking" && !now.isBrief && isBrief) return { kind: "busy", grant: undefined };
    return this.#getInLine(way, isBrief, signal);
  }

  #getInLine(way: Way, isBrief: boolean, signal: AbortSignal): Promise<Entry<G> | undefined> {
    return new Promise((resolve) => {
      const waiter: DoorWaiter<G> = {
        way,
        isBrief,
        enter: (entry) => {
          signal.removeEventListener("abort", leave);
          resolve(entry);
        },
      };
      const leave = (): void => {
        this.line = this.line.filter((other) => other !== waiter);
        resolve(undefined);
      };
      this.line.push(waiter);
      signal.addEventListener("abort", leave, { once: true });
    });
  }

  /** Tells those who wait briefly that it takes longer. */
  turnAwayTheBrief(grant: G | undefined): void {
    const brief = this.line.filter((waiter) => waiter.isBrief);
    this.line = this.line.filter((waiter) => !waiter.isBrief);
    for (const waiter of brief) waiter.enter({ kind: "busy", grant });
  }
}

/** The right to ask for a name, to hold it, and to release it. */
export class Turn<G> {
  readonly #door: Door<G>;
  readonly #closed: () => void;
  #isOver = false;

  constructor(door: Door<G>, closed: () => void) {
    this.#door = door;
    this.#closed = closed;
  }

  /** The name is held. Those at the front of the line that want it in the same shared way get it too. */
  held(way: Way, grant: G): void {
    this.#door.now = { kind: "held", way, grant };
    for (let next = this.#door.line[0]; next && canJoin(next.way, way); next = this.#door.line[0]) {
      this.#door.line.shift();
      next.enter({ kind: "share", grant });
    }
    this.#door.turnAwayTheBrief(grant);
  }

  /** The name is being released: those who come now wait for that. */
  leaving(): void {
    if (!this.#isOver) this.#door.now = { kind: "leaving" };
  }

  /** The name is free: the next in line goes in. */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const next = this.#door.line.shift();
    if (!next) {
      this.#door.now = { kind: "idle" };
      this.#closed();
      return;
    }
    this.#door.now = { kind: "asking", isBrief: next.isBrief };
    if (!next.isBrief) this.#door.turnAwayTheBrief(undefined);
    next.enter({ kind: "turn", turn: new Turn(this.#door, this.#closed) });
  }
}

/** All doors of a session. Those that nobody uses are forgotten. */
export class Doors<G> {
  readonly #doors = new Map<string, Door<G>>();

  /** Goes in, or gets in line. Resolves to `undefined` if the signal aborts first. */
  enter(name: string, way: Way, isBrief: boolean, signal: AbortSignal): Entry<G> | Promise<Entry<G> | undefined> {
    const door = this.#doors.get(name) ?? new Door<G>();
    this.#doors.set(name, door);
    return door.enter(way, isBrief, this.#turn(name, door), signal);
  }

  /** Goes in to release, if nobody holds the name, asks for it, or releases it. */
  tryEnter(name: string): Turn<G> | undefined {
    if (this.#doors.has(name)) return undefined;
    const door = new Door<G>();
    door.now = { kind: "leaving" };
    this.#doors.set(name, door);
    return this.#turn(name, door);
  }

  #turn(name: string, door: Door<G>): Turn<G> {
    return new Turn(door, () => this.#doors.delete(name));
  }
}
