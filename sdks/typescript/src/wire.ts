/** What the service tells, as objects of this language: 64-bit integers are `bigint`, times in ms are numbers. */
import type { Fields } from "./cluster.js";
import { UnavailableError } from "./errors.js";

/** How a lock is held: alone, or together with others that share it. */
export type Mode = "exclusive" | "shared";
/** What a lock covers: its name alone, or everything below it too. */
export type Scope = "name" | "subtree";

/** Who holds a lock. */
export interface Holder {
  readonly owner: string;
  readonly leaseId: bigint;
  readonly token: bigint;
  readonly mode: Mode;
  readonly scope: Scope;
  /** The text that the holder shows. */
  readonly value: string;
  /** Since when, by the clock of a node. For display only. */
  readonly sinceUnixMs: number;
  /** How long its lease lives if nobody renews it; `undefined` if the asked node does not know. */
  readonly remainingMs: number | undefined;
}

/** Who waits for a lock. */
export interface Waiter {
  readonly owner: string;
  readonly leaseId: bigint;
  readonly mode: Mode;
  readonly scope: Scope;
  /** The place in the queue, from 1. */
  readonly position: number;
}

/** A lock, as it was at one revision. */
export interface LockInfo {
  readonly name: string;
  /** The first 1,000 holders (10 in a list). */
  readonly holders: readonly Holder[];
  /** The first 1,000 waiters (10 in a list), first come first. */
  readonly waiters: readonly Waiter[];
  readonly holderCount: number;
  readonly waiterCount: number;
  /** The name above it that is held with its subtree; empty if there is none. */
  readonly coveredBy: string;
  readonly revision: bigint;
}

/** A grant of a lease. */
export interface GrantInfo {
  readonly name: string;
  readonly token: bigint;
  readonly mode: Mode;
  readonly scope: Scope;
  /** The id of the acquire that it was granted to. */
  readonly acquireRequestId: string;
  readonly sinceUnixMs: number;
}

/** A lease, and what it holds. */
export interface LeaseInfo {
  readonly leaseId: bigint;
  readonly owner: string;
  readonly ttlMs: number;
  readonly remainingMs: number | undefined;
  readonly grants: readonly GrantInfo[];
  /** What it waits for. */
  readonly waitsFor: readonly string[];
}

/** How a node sees its cluster. */
export interface Status {
  readonly nodeId: string;
  readonly isLeader: boolean;
  /** The leader's name; empty while none is known. */
  readonly leaderId: string;
  readonly clusterId: string;
  readonly version: string;
  /** `leader`, `follower`, `candidate`, `learner` or `diverged`. */
  readonly state: string;
  readonly term: bigint;
  readonly appliedIndex: bigint;
  /** The names of all registered nodes. */
  readonly members: readonly string[];
}

/** Reads the fields of an answer. A field that is missing or of another kind reads as empty. */
export class Reader {
  readonly #fields: Fields;

  constructor(value: unknown) {
    this.#fields = typeof value === "object" && value !== null ? (value as Fields) : {};
  }

  text(name: string): string {
    const value = this.#fields[name];
    return typeof value === "string" ? value : "";
  }

  flag(name: string): boolean {
    return this.#fields[name] === true;
  }

  has(name: string): boolean {
    return this.#fields[name] !== undefined && this.#fields[name] !== null;
  }

  bigint(name: string): bigint {
    const value = this.#fields[name];
    if (typeof value === "number" && Number.isSafeInteger(value)) return BigInt(value);
    return typeof value === "string" && /^-?\d{1,20}$/.test(value) ? BigInt(value) : 0n;
  }

  number(name: string): number {
    return Number(this.bigint(name));
  }

  /** A number that must be there: without it the answer is none. */
  required(name: string): bigint {
    const value = this.bigint(name);
    if (value <= 0n) throw new UnavailableError(`an answer without ${name}`, { outcomeUnknown: true });
    return value;
  }

  one(name: string): Reader {
    return new Reader(this.#fields[name]);
  }

  list(name: string): Reader[] {
    const value = this.#fields[name];
    return Array.isArray(value) ? value.map((item) => new Reader(item)) : [];
  }

  get mode(): Mode {
    return this.text("mode") === "SHARED" ? "shared" : "exclusive";
  }

  get scope(): Scope {
    return this.text("scope") === "SUBTREE" ? "subtree" : "name";
  }

  get remainingMs(): number | undefined {
    return this.has("remainingMs") ? this.number("remainingMs") : undefined;
  }
}

export function readHolder(reader: Reader): Holder {
  return {
    owner: reader.text("ownerId"),
    leaseId: reader.bigint("leaseId"),
    token: reader.bigint("fencingToken"),
    mode: reader.mode,
    scope: reader.scope,
    value: reader.text("value"),
    sinceUnixMs: reader.number("sinceUnixMs"),
    remainingMs: reader.remainingMs,
  };
}

export function readLock(reader: Reader): LockInfo {
  return {
    name: reader.text("lockName"),
    holders: reader.list("holders").map(readHolder),
    waiters: reader.list("waiters").map((waiter) => ({
      owner: waiter.text("ownerId"),
      leaseId: waiter.bigint("leaseId"),
      mode: waiter.mode,
      scope: waiter.scope,
      position: waiter.number("position"),
    })),
    holderCount: reader.number("holderCount"),
    waiterCount: reader.number("waiterCount"),
    coveredBy: reader.text("coveredBy"),
    revision: reader.bigint("revision"),
  };
}

export function readGrant(reader: Reader): GrantInfo {
  return {
    name: reader.text("lockName"),
    token: reader.bigint("fencingToken"),
    mode: reader.mode,
    scope: reader.scope,
    acquireRequestId: reader.text("acquireRequestId"),
    sinceUnixMs: reader.number("sinceUnixMs"),
  };
}

export function readStatus(reader: Reader): Status {
  return {
    nodeId: reader.text("nodeId"),
    isLeader: reader.flag("isLeader"),
    leaderId: reader.text("leaderId"),
    clusterId: reader.text("clusterId"),
    version: reader.text("version"),
    state: reader.text("state"),
    term: reader.bigint("term"),
    appliedIndex: reader.bigint("appliedIndex"),
    members: reader.list("members").map((member) => member.text("nodeId")),
  };
}
