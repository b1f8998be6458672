/**
 * The driver of the conformance suite: does with the SDK what it is told on standard input, and says what the SDK
 * answered. `conformance/DRIVER.md` describes the lines.
 */
import { createInterface } from "node:readline";
import { nowNanos } from "../src/clock.js";
import {
  BeliefEndedError,
  Client,
  type EventStream,
  InvalidArgumentError,
  type LeaderEvent,
  LockHeldError,
  type LockGuard,
  LockLostError,
  LowkeyError,
  type Session,
  SessionLostError,
  UnavailableError,
  type WatchEvent,
  WaitTimeoutError,
  WrongClusterError,
} from "../src/index.js";

type Fields = Record<string, unknown>;

/** The command itself is wrong. */
class DriverError extends Error {}

/** The command was cancelled. */
class CancelledError extends Error {}

function say(line: Fields): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function now(): string {
  return nowNanos().toString();
}

/** Things by the handles that the harness chose for them. */
class Handles<T> {
  readonly #what: string;
  readonly #things = new Map<string, T>();

  constructor(what: string) {
    this.#what = what;
  }

  /** Reserves the handle before the thing is there, so that no two commands make the same. */
  check(handle: string): string {
    if (this.#things.has(handle)) throw new DriverError(`there is a ${this.#what} "${handle}" already`);
    return handle;
  }

  set(handle: string, thing: T): void {
    this.#things.set(this.check(handle), thing);
  }

  get(handle: string): T {
    const thing = this.#things.get(handle);
    if (thing === undefined) throw new DriverError(`there is no ${this.#what} "${handle}"`);
    return thing;
  }
}

/** The arguments of a command. */
class Arguments {
  readonly #fields: Fields;

  constructor(fields: Fields) {
    this.#fields = fields;
  }

  text(name: string): string {
    const value = this.optional(name);
    if (value === undefined) throw new DriverError(`"${name}" is missing`);
    return value;
  }

  optional(name: string): string | undefined {
    const value = this.#fields[name] ?? undefined;
    if (value !== undefined && typeof value !== "string") throw new DriverError(`"${name}" is no text`);
    return value;
  }

  number(name: string): number | undefined {
    const value = this.#fields[name] ?? undefined;
    if (value !== undefined && typeof value !== "number") throw new DriverError(`"${name}" is no number`);
    return value;
  }

  texts(name: string): string[] {
    const value = this.#fields[name];
    if (!Array.isArray(value)) throw new DriverError(`"${name}" is no list`);
    return value.map(String);
  }
}

interface Election {
  readonly controller: AbortController;
  readonly campaign: Promise<unknown>;
}

const clients = new Handles<Client>("client");
const sessions = new Handles<Session>("session");
const locks = new Handles<LockGuard>("lock");
const watches = new Handles<EventStream<unknown>>("watch");
const elections = new Handles<Election>("elect");
/** Acquires under way, by the id of their command. */
const acquires = new Map<number, AbortController>();

/** Tells of a loss, unless it was asked for. */
function tellLoss(what: Fields, signal: AbortSignal): void {
  const tell = (): void => {
    const reason: unknown = signal.reason;
    const cause = reason instanceof BeliefEndedError ? reason.lossCause : "expired";
    if (cause !== "closed") say({ event: "lost", ...what, cause, at_ns: now() });
  };
  if (signal.aborted) tell();
  else signal.addEventListener("abort", tell, { once: true });
}

async function acquire(args: Arguments, id: number): Promise<Fields> {
  const session = sessions.get(args.text("session"));
  const handle = locks.check(args.text("lock"));
  const controller = new AbortController();
  acquires.set(id, controller);
  try {
    const guard = await session.lock(args.text("name"), {
      mode: args.optional("mode") as "shared" | undefined,
      scope: args.optional("scope") as "subtree" | undefined,
      value: args.optional("value"),
      timeoutMs: args.number("wait_ms"),
      atMostSeconds: args.number("at_most_seconds"),
      signal: controller.signal,
    });
    const at_ns = now();
    locks.set(handle, guard);
    tellLoss({ lock: handle }, guard.signal);
    return { token: guard.token.toString(), lease_id: guard.leaseId.toString(), at_ns };
  } finally {
    acquires.delete(id);
  }
}

/** Asks about every millisecond whether a lock is held, until it is not. */
function probe(handle: string, guard: LockGuard): void {
  let lastTrue: string | undefined;
  let trues = 0;
  const timer = setInterval(() => {
    const at = now();
    if (guard.held) {
      lastTrue = at;
      trues += 1;
      return;
    }
    clearInterval(timer);
    say({ event: "probe", lock: handle, last_true_ns: lastTrue, first_false_ns: at, trues });
  }, 1);
}

/** Tells each event of a stream until it is closed. */
async function tellEvents<E>(handle: string, stream: EventStream<E>, fields: (event: E) => Fields): Promise<void> {
  try {
    for await (const event of stream) say({ event: "watch", watch: handle, ...fields(event) });
  } catch (error) {
    const { kind, reason } = describe(error);
    say({ event: "watch.error", watch: handle, kind, reason });
  }
}

async function beginStream<E>(handle: string, stream: EventStream<E>, fields: (event: E) => Fields): Promise<Fields> {
  watches.set(handle, stream);
  await stream.begun;
  void tellEvents(handle, stream, fields);
  return {};
}

function changeFields({ type, name, owner, token, position }: WatchEvent): Fields {
  return { type, name, owner, token: token.toString(), position };
}

function leaderFields({ type, leader, revision }: LeaderEvent): Fields {
  const who = leader && { owner: leader.owner, token: leader.token.toString(), value: leader.value };
  return { type, ...who, position: revision.toString() };
}

function elect(args: Arguments): Fields {
  const handle = elections.check(args.text("elect"));
  const controller = new AbortController();
  const options = { value: args.text("value"), ttlMs: seconds(args), signal: controller.signal };
  const campaign = clients.get(args.text("client")).elect(args.text("name"), options, async (lead) => {
    const token = lead.token.toString();
    say({ event: "elected", elect: handle, token, at_ns: now() });
    const cause = await lead.lost();
    if (cause !== "closed") say({ event: "deposed", elect: handle, token, cause, at_ns: now() });
  });
  elections.set(handle, { controller, campaign: campaign.catch(() => undefined) });
  return {};
}

function seconds(args: Arguments): number {
  const ttl = args.number("ttl_seconds");
  if (ttl === undefined) throw new DriverError('"ttl_seconds" is missing');
  return ttl * 1000;
}

type Operation = (args: Arguments, id: number) => Promise<Fields> | Fields;

const OPERATIONS: Record<string, Operation> = {
  "client.new": (args) => {
    const client = new Client({
      endpoints: args.texts("endpoints"),
      owner: args.optional("owner"),
      callTimeoutMs: args.number("call_timeout_ms"),
      ca: args.optional("ca"),
      cert: args.optional("cert"),
      key: args.optional("key"),
      tokenFile: args.optional("token_file"),
    });
    clients.set(args.text("client"), client);
    return {};
  },
  "client.close": async (args) => {
    await clients.get(args.text("client")).close();
    return {};
  },
  "session.new": async (args) => {
    const handle = sessions.check(args.text("session"));
    const session = await clients.get(args.text("client")).session({ ttlMs: seconds(args) });
    sessions.set(handle, session);
    tellLoss({ session: handle }, session.signal);
    return { lease_id: session.leaseId.toString() };
  },
  "session.status": (args) => {
    const session = sessions.get(args.text("session"));
    const at_ns = now();
    const { held, lossCause: cause, remainingMs } = session;
    return { held, cause, remaining_ms: Math.floor(remainingMs), at_ns };
  },
  "session.close": async (args) => {
    await sessions.get(args.text("session")).close();
    return {};
  },
  "lock.acquire": acquire,
  "lock.held": (args) => {
    const guard = locks.get(args.text("lock"));
    const at_ns = now();
    return { held: guard.held, remaining_ms: Math.floor(guard.remainingMs), at_ns };
  },
  "lock.check": (args) => {
    locks.get(args.text("lock")).check();
    return {};
  },
  "lock.probe": (args) => {
    const handle = args.text("lock");
    probe(handle, locks.get(handle));
    return {};
  },
  "lock.release": async (args) => {
    const guard = locks.get(args.text("lock"));
    const at_ns = now();
    await guard.release();
    return { at_ns };
  },
  "lock.get": async (args) => {
    const { holders } = await clients.get(args.text("client")).get(args.text("name"));
    const list = holders.map(({ owner, leaseId, token }) => ({ owner, lease_id: leaseId.toString(), token: token.toString() }));
    return { holders: list };
  },
  cancel: (args) => {
    const controller = acquires.get(args.number("target") ?? Number.NaN);
    controller?.abort(new CancelledError("the command was cancelled"));
    return { cancelled: controller !== undefined };
  },
  "watch.new": (args) => {
    const stream = clients.get(args.text("client")).watch({
      name: args.optional("name"),
      prefix: args.optional("prefix"),
      after: args.optional("after"),
    });
    return beginStream(watches.check(args.text("watch")), stream, changeFields);
  },
  "watch.close": (args) => {
    watches.get(args.text("watch")).close();
    return {};
  },
  "observe.new": (args) => {
    const stream = clients.get(args.text("client")).observe(args.text("name"));
    return beginStream(watches.check(args.text("watch")), stream, leaderFields);
  },
  "elect.new": elect,
  "elect.stop": async (args) => {
    const { controller, campaign } = elections.get(args.text("elect"));
    controller.abort(new CancelledError("the election was stopped"));
    await campaign;
    return {};
  },
};

function kindOf(error: unknown): string {
  if (error instanceof CancelledError) return "cancelled";
  if (error instanceof LockHeldError) return "held";
  if (error instanceof WaitTimeoutError) return "wait_timeout";
  if (error instanceof SessionLostError) return "session_lost";
  if (error instanceof LockLostError) return "lost";
  if (error instanceof UnavailableError) return "unavailable";
  if (error instanceof WrongClusterError) return "wrong_cluster";
  if (error instanceof InvalidArgumentError) return "invalid";
  return error instanceof LowkeyError ? "refused" : "driver";
}

function describe(error: unknown): Fields {
  const message = error instanceof Error ? error.message : String(error);
  const facts = error instanceof LowkeyError ? error : undefined;
  const isLoss = error instanceof SessionLostError || error instanceof LockLostError;
  const cause = isLoss ? error.lossCause : undefined;
  return { kind: kindOf(error), message, reason: facts?.reason, outcome_unknown: facts?.outcomeUnknown ?? false, cause };
}

async function obey(line: string): Promise<void> {
  let id: number | null = null;
  try {
    const command = JSON.parse(line) as Fields;
    if (typeof command["id"] !== "number") throw new DriverError('a command needs an "id"');
    id = command["id"];
    const op = String(command["op"]);
    if (op === "exit") {
      process.stdout.write(`${JSON.stringify({ id, ok: {} })}\n`, () => process.exit(0));
      return;
    }
    const operation = OPERATIONS[op];
    if (!operation) throw new DriverError(`there is no operation "${op}"`);
    say({ id, ok: await operation(new Arguments(command), id) });
  } catch (error) {
    say({ id, error: describe(error) });
  }
}

say({ event: "ready", sdk: "typescript", version: "1.0.0-rc.1", protocol: 1 });
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  if (line.trim() !== "") void obey(line);
});
lines.on("close", () => process.exit(0));
