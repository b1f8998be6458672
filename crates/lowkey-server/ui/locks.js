// All locks under a prefix, as they are now: listed once, then kept true by a watch.
//
// The watch begins where the first page of the list was true, so nothing falls between the two. What a read
// told already is not applied again: each lock remembers as of which revision it is known. Revisions do not fit into
// a number: a cluster's first may be above 2^56.

import { ApiError, STREAMS, behind, events, get, mine, pause } from "./api.js";

const PAGE = 500;
/** How often listeners are called at most. */
const TELL_MS = 100;
const RETRY_MS = 1000;
const POLL_MS = 5000;
const NAMES_MS = 2000;
const DOUBT_MS = 500;
const DOUBTS = 20;
/** Below this many locks the whole tree is open at first. */
const FEW = 200;

/** A name's part between two `/`, and everything below it. */
class Branch {
  constructor(parent, part) {
    this.parent = parent;
    this.part = part;
    this.depth = parent ? parent.depth + 1 : -1;
    this.children = new Map();
    /** The children in order; made when it is needed. */
    this.sorted = null;
    this.lock = null;
    this.root = parent ? parent.root : this;
    /** Of the root: while there are few locks, nothing is folded by itself. */
    this.opensNew = false;
    this.isOpen = this.root.opensNew || !parent;
    this.locks = 0;
    this.waiting = 0;
    /** How many rows it takes: its own, and those below if it is open. */
    this.rows = parent ? 1 : 0;
  }

  get path() {
    return this.depth > 0 ? `${this.parent.path}/${this.part}` : this.part;
  }

  inOrder() {
    this.sorted ??= [...this.children.values()].sort((a, b) => (a.part < b.part ? -1 : 1));
    return this.sorted;
  }

  child(part) {
    let child = this.children.get(part);
    if (child) return child;
    child = new Branch(this, part);
    this.children.set(part, child);
    if (this.sorted) this.sorted.splice(this.place(part), 0, child);
    if (this.isOpen) this.addRows(1);
    return child;
  }

  /** Where a part stands among the children. */
  place(part) {
    let [low, high] = [0, this.sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.sorted[middle].part < part) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  drop(child) {
    this.children.delete(child.part);
    if (this.sorted) this.sorted.splice(this.place(child.part), 1);
    if (this.isOpen) this.addRows(-child.rows);
  }

  addRows(change) {
    this.rows += change;
    if (this.parent?.isOpen) this.parent.addRows(change);
  }

  setOpen(isOpen) {
    if (this.isOpen === isOpen || !this.children.size) return;
    let below = 0;
    for (const child of this.children.values()) below += child.rows;
    this.isOpen = isOpen;
    this.addRows(isOpen ? below : -below);
    // A branch with one child alone says nothing: what is below it does.
    if (isOpen && this.children.size === 1) this.inOrder()[0].setOpen(true);
  }

  add(locks, waiting) {
    for (let branch = this; branch; branch = branch.parent) {
      branch.locks += locks;
      branch.waiting += waiting;
    }
  }
}

class LockStore {
  constructor(prefix) {
    this.prefix = prefix;
    /** What is read of it: all, unless access says less. Single names are not watched. */
    this.prefixes = [prefix];
    this.names = [];
    this.listeners = new Set();
    /** True if these locks may be read and not watched, or are too many to watch. */
    this.isPolled = false;
    this.reset();
  }

  reset() {
    /** By name. */
    this.locks = new Map();
    this.root = new Branch(null, "");
    /** `loading`, `live`, or `lost` with an error. */
    this.state = "loading";
    this.error = null;
    /** False if the node has lost touch with the leader. */
    this.inTouch = true;
    /** Rises with every change. */
    this.version = 0;
    this.doubted = new Set();
  }

  start() {
    this.stopping = new AbortController();
    this.run(this.stopping.signal);
  }

  stop() {
    this.stopping.abort();
  }

  follow(listener) {
    this.listeners.add(listener);
    listener();
    return () => this.listeners.delete(listener);
  }

  changed() {
    this.version += 1;
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.listeners.forEach((listener) => listener());
    }, TELL_MS);
  }

  async run(signal) {
    let streams = null;
    while (!signal.aborted) {
      const round = new AbortController();
      const both = AbortSignal.any([signal, round.signal]);
      try {
        streams ??= await this.list(signal);
        this.isPolled = streams.length > STREAMS;
        if (this.isPolled) {
          streams = null;
          await pause(POLL_MS, signal);
        } else await Promise.all([...streams.map((stream) => this.watch(stream, both)), this.pollNames(both)]);
      } catch (error) {
        if (signal.aborted) return;
        // Who may read and not watch gets a list from time to time.
        if (error.isRefusal && this.state === "live") {
          this.isPolled = true;
          streams = null;
          await pause(POLL_MS, signal);
          continue;
        }
        // The position is gone, or never was with this cluster: list anew, and show nothing old meanwhile.
        if (error instanceof ApiError && error.status >= 400) streams = null;
        Object.assign(this, { state: "lost", error });
        this.changed();
        await pause(RETRY_MS, signal);
      } finally {
        round.abort();
      }
    }
  }

  async watch(stream, signal) {
    while (!signal.aborted) {
      for await (const some of events("/v1/watch", { prefix: stream.prefix, ...stream.position }, signal)) {
        if (this.state !== "live") Object.assign(this, { state: "live", error: null });
        for (const event of some) {
          this.apply(event);
          stream.position = behind(event);
        }
        this.changed();
      }
    }
  }

  async pollNames(signal) {
    while (this.names.length && !signal.aborted) {
      await pause(NAMES_MS, signal);
      await this.readNames(signal);
    }
  }

  async readNames(signal) {
    for (const lockName of this.names) this.put(await get("/v1/lock", { name: lockName }, signal), true);
  }

  /** Reads all; gives where to watch from. */
  async list(signal) {
    const { prefixes, names } = await mine("read", this.prefix);
    const streams = [];
    const open = new Set(this.openPaths());
    for (const prefix of prefixes) {
      let page = { nextPageToken: "" };
      let position;
      do {
        page = await get("/v1/locks", { prefix, page_size: PAGE, page_token: page.nextPageToken }, signal);
        if (!streams.length && !position) this.reset();
        position ??= page.watchAfter ? { after: page.watchAfter } : { from: page.watchFrom };
        for (const told of page.locks) this.put(told);
        this.changed();
      } while (page.nextPageToken);
      streams.push({ prefix, position });
    }
    Object.assign(this, { prefixes, names });
    await this.readNames(signal);
    if (open.size) this.reopen(this.root, open);
    else if (this.locks.size <= FEW) this.openAll(this.root);
    else if (this.root.children.size === 1) this.root.inOrder()[0].setOpen(true);
    this.root.opensNew = this.locks.size <= FEW;
    this.state = "live";
    this.changed();
    return streams;
  }

  openPaths(branch = this.root) {
    return [...branch.children.values()].flatMap((child) => (child.isOpen ? [child.path, ...this.openPaths(child)] : []));
  }

  reopen(branch, open) {
    for (const child of branch.children.values()) {
      if (open.has(child.path)) child.setOpen(true);
      this.reopen(child, open);
    }
  }

  openAll(branch) {
    for (const child of branch.children.values()) {
      child.setOpen(true);
      this.openAll(child);
    }
  }

  branch(lockName) {
    return lockName.split("/").reduce((branch, part) => branch.child(part), this.root);
  }

  /** The lock of this name, made if there is none. */
  make(lockName) {
    let lock = this.locks.get(lockName);
    if (!lock) {
      const branch = this.branch(lockName);
      lock = { name: lockName, holders: [], waiters: [], holderCount: 0, waiterCount: 0, asOf: 0n, readAt: 0, last: 0n, coveredBy: "", branch, counted: 0 };
      branch.lock = lock;
      branch.add(1, 0);
      this.locks.set(lockName, lock);
    }
    return lock;
  }

  settle(lock) {
    lock.branch.add(0, lock.waiterCount - lock.counted);
    lock.counted = lock.waiterCount;
    if (lock.holderCount || lock.waiterCount) return;
    this.locks.delete(lock.name);
    lock.branch.add(-1, 0);
    lock.branch.lock = null;
    for (let branch = lock.branch; branch.parent && !branch.lock && !branch.children.size; branch = branch.parent) {
      branch.parent.drop(branch);
    }
  }

  /** Takes in what a read told. What happened since is not undone by it: while locks are watched, events alone tell of
   * one that was not there. */
  put(told, isUnwatched = false) {
    const revision = BigInt(told.revision);
    const known = this.locks.get(told.lockName);
    if (known ? revision < known.asOf || revision < known.last : this.state === "live" && !isUnwatched) return;
    const lock = this.make(told.lockName);
    const { holders, waiters, holderCount, waiterCount, coveredBy } = told;
    Object.assign(lock, { holders, waiters, holderCount, waiterCount, coveredBy, asOf: revision, readAt: Date.now() });
    this.settle(lock);
    this.changed();
  }

  /** Reads a lock anew: its time left, which no event tells. */
  async read(lockName, signal) {
    this.put(await get("/v1/lock", { name: lockName }, signal));
  }

  apply(event) {
    const revision = BigInt(event.revision);
    this.inTouch = event.inTouch;
    if (!event.name) return;
    const known = this.locks.get(event.name);
    if (known && revision <= known.asOf) return;
    const gone = ["RELEASED", "EXPIRED", "REVOKED", "CANCELLED"].includes(event.type);
    if (!known && gone) return;
    const lock = known ?? this.make(event.name);
    lock.last = revision;
    if (event.type === "ACQUIRED") {
      lock.coveredBy = "";
      this.unwait(lock, event, false);
      lock.holders.push(holder(event));
      lock.holderCount += 1;
    } else if (event.type === "WAITING") {
      lock.waiters.push({ ownerId: event.owner, leaseId: event.leaseId, mode: event.mode, scope: event.scope });
      lock.waiterCount += 1;
    } else if (event.type === "CANCELLED") {
      this.unwait(lock, event, true);
    } else if (event.type === "VALUE") {
      const held = lock.holders.find((it) => it.fencingToken === event.fencingToken);
      if (held) held.value = event.value;
    } else if (gone) {
      lock.holders = lock.holders.filter((it) => it.fencingToken !== event.fencingToken);
      lock.holderCount = Math.max(lock.holders.length, lock.holderCount - 1);
    }
    this.settle(lock);
  }

  /** Somebody waits no longer. Of a long queue only the beginning is known: who is not in it may be behind it, or
   * may never have waited. Then the lock is read anew. */
  unwait(lock, event, must) {
    const at = lock.waiters.findIndex((waiter) => waiter.leaseId === event.leaseId);
    const isLong = lock.waiterCount > lock.waiters.length;
    if (at >= 0) lock.waiters.splice(at, 1);
    if (at >= 0 || (must && isLong)) lock.waiterCount -= 1;
    if (at < 0 && isLong) this.doubt(lock.name);
  }

  /** Has a lock read anew, after a moment in which more may come to be doubted. */
  doubt(lockName) {
    this.doubted.add(lockName);
    this.reading ??= setTimeout(async () => {
      const names = [...this.doubted].slice(0, DOUBTS);
      for (const doubted of names) this.doubted.delete(doubted);
      await Promise.allSettled(names.map((doubted) => this.read(doubted, this.stopping.signal)));
      this.reading = undefined;
      if (this.doubted.size && !this.stopping.signal.aborted) this.doubt([...this.doubted][0]);
    }, DOUBT_MS);
  }

  /** The branches that take these rows. */
  *rowsFrom(first, branch = this.root) {
    let skip = first;
    for (const child of branch.inOrder()) {
      if (skip >= child.rows) {
        skip -= child.rows;
        continue;
      }
      if (skip === 0) yield child;
      else skip -= 1;
      if (child.isOpen && child.children.size) {
        yield* this.rowsFrom(skip, child);
      }
      skip = 0;
    }
  }

  /** All locks, those with the greatest `key` first. `key` is a number up to 2^33. */
  sortedBy(key) {
    const locks = [...this.locks.values()];
    // Numbers sort ten times faster than objects: each has its key in front and its place behind.
    const places = 2 ** 20;
    const keys = Float64Array.from(locks, (lock, at) => key(lock) * places + (places - 1 - at)).sort();
    return Array.from(keys, (packed) => locks[places - 1 - (packed % places)]).reverse();
  }
}

function holder(event) {
  return {
    ownerId: event.owner, leaseId: event.leaseId, fencingToken: event.fencingToken, mode: event.mode,
    scope: event.scope, value: event.value, sinceUnixMs: event.atUnixMs,
  };
}

/** The last store stays for a while: going back to a view finds it as it was left. */
const KEEP_MS = 60_000;
let kept = null;

/** The locks under a prefix, until `release` is called. */
export function open(prefix) {
  if (kept?.store.prefix !== prefix) {
    kept?.store.stop();
    clearTimeout(kept?.timer);
    kept = { store: new LockStore(prefix) };
    kept.store.start();
  }
  clearTimeout(kept.timer);
  const mine = kept;
  const release = () => {
    mine.timer = setTimeout(() => {
      mine.store.stop();
      if (kept === mine) kept = null;
    }, KEEP_MS);
  };
  return [mine.store, release];
}

/** With another token other locks may be seen. */
export function forget() {
  kept?.store.stop();
  kept = null;
}
