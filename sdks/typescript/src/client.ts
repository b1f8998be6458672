/** The client: the entry point of the SDK. */
import { hostname } from "node:os";
import { nowNanos } from "./clock.js";
import { Cluster, type Fields } from "./cluster.js";
import { Credentials } from "./credentials.js";
import { elect, type ElectOptions, type Leadership } from "./election.js";
import { InvalidArgumentError, LowkeyError, UnavailableError } from "./errors.js";
import { Inner } from "./inner.js";
import { Keeper } from "./keeper.js";
import { Presence } from "./presence.js";
import { requestId, tag } from "./random.js";
import { Session } from "./session.js";
import { sleep } from "./sleep.js";
import { validUntil } from "./validity.js";
import { type EventStream, type LeaderEvent, observe, watch, type WatchEvent, type WatchOptions } from "./watch.js";
import {
  type GrantInfo,
  type Holder,
  type LeaseInfo,
  type LockInfo,
  readGrant,
  readHolder,
  readLock,
  readStatus,
  Reader,
  type Status,
} from "./wire.js";

const DEFAULT_ENDPOINT = "http://127.0.0.1:8080";
const CALL_TIMEOUT_MS = 10_000;
const PAGE_SIZE = "1000";

/** How a client is set up. Everything has a default. */
export interface ClientOptions {
  /**
   * URLs of nodes: give all of them. If left out, `LOWKEY_ENDPOINTS` (with commas between them) counts, and then
   * `http://127.0.0.1:8080`. The address of a node's gRPC port will do too: the node names its HTTP port.
   */
  readonly endpoints?: string | readonly string[] | undefined;
  /** The name of this client in lists of locks. By default it is made from host and process. */
  readonly owner?: string | undefined;
  /** How long a call may take, with all retries: 10,000 ms by default. A wait for a lock comes on top. */
  readonly callTimeoutMs?: number | undefined;
  /**
   * The id of the expected cluster. Nodes of any other are refused from the beginning. Without it the client
   * stays with the cluster of the node that answers first.
   */
  readonly clusterId?: string | undefined;
  /** A PEM file with the authorities to trust, for `https://`; read again when it changes. */
  readonly ca?: string | undefined;
  /** A PEM file with this client's certificate; read again when it changes. */
  readonly cert?: string | undefined;
  /** A PEM file with the key of that certificate; read again when it changes. */
  readonly key?: string | undefined;
  /** A file with a bearer token; read again when it changes. If left out, `LOWKEY_AUTH_FILE` counts. */
  readonly tokenFile?: string | undefined;
}

/** How a session is made. */
export interface SessionOptions {
  /** How long its lease lives without renewal: whole seconds, 1,000 to 600,000 ms. */
  readonly ttlMs: number;
  /** Gives up the wish; a lease that was made meanwhile is ended. */
  readonly signal?: AbortSignal | undefined;
}

/** A list of locks, and where to watch from to miss nothing after it. */
export interface LockList {
  readonly locks: readonly LockInfo[];
  /** Pass it as `from` to {@link Client.watch}. */
  readonly watchFrom: bigint;
}

/** Who leads an election. */
export interface LeaderInfo {
  /** `undefined` if nobody does. */
  readonly leader: Holder | undefined;
  /** How many wait. */
  readonly candidates: number;
  readonly revision: bigint;
}

/** Whether a token is a current one. */
export interface TokenCheck {
  readonly current: boolean;
  /** The holder with that token, or else the present one; `undefined` if nobody holds the lock. */
  readonly holder: Holder | undefined;
  readonly revision: bigint;
}

function endpointsOf(options: ClientOptions): string[] {
  const given = options.endpoints ?? process.env["LOWKEY_ENDPOINTS"] ?? DEFAULT_ENDPOINT;
  const list = typeof given === "string" ? given.split(",") : [...given];
  return list.map((endpoint) => endpoint.trim()).filter((endpoint) => endpoint !== "");
}

function ttlSecondsOf(ttlMs: number): bigint {
  const isGood = Number.isInteger(ttlMs) && ttlMs % 1000 === 0 && ttlMs >= 1_000 && ttlMs <= 600_000;
  if (!isGood) throw new InvalidArgumentError(`ttlMs is ${ttlMs}: whole seconds are needed, 1000 to 600000`);
  return BigInt(ttlMs / 1000);
}

/**
 * A connection to a cluster. It connects when it is first used, finds the leader among its endpoints, retries
 * safely, and refuses another cluster.
 *
 * ```ts
 * await using client = new Client({ endpoints: ["http://10.0.0.1:8080", "http://10.0.0.2:8080"] });
 * await using session = await client.session({ ttlMs: 10_000 });
 * ```
 */
export class Client implements AsyncDisposable {
  readonly #inner: Inner;
  readonly #sessions = new Set<Session>();

  constructor(options: ClientOptions = {}) {
    const { ca, cert, key, callTimeoutMs = CALL_TIMEOUT_MS } = options;
    if (!(callTimeoutMs > 0)) throw new InvalidArgumentError(`callTimeoutMs is ${callTimeoutMs}: more than 0 is needed`);
    const tokenFile = options.tokenFile ?? process.env["LOWKEY_AUTH_FILE"];
    const credentials = new Credentials({ ca, cert, key }, tokenFile === "" ? undefined : tokenFile);
    const cluster = new Cluster(endpointsOf(options), credentials, options.clusterId);
    const keeper = new Keeper(cluster);
    const owner = options.owner ?? `${hostname() || "client"}-${process.pid}-${tag()}`;
    this.#inner = new Inner(cluster, keeper, owner, callTimeoutMs);
    keeper.inner = this.#inner;
  }

  /** The name of this client in lists of locks. */
  get owner(): string {
    return this.#inner.owner;
  }

  /** The id of the cluster that this client is bound to; `undefined` before a node has answered. */
  get clusterId(): string | undefined {
    return this.#inner.cluster.clusterId;
  }

  /** The endpoint that is asked next. */
  get endpoint(): string {
    return this.#inner.cluster.current.url;
  }

  /** Creates a session: a lease that is renewed automatically. */
  async session(options: SessionOptions): Promise<Session> {
    const { signal } = options;
    signal?.throwIfAborted();
    const ttlSeconds = ttlSecondsOf(options.ttlMs);
    const body = { owner_id: this.owner, ttl_seconds: Number(ttlSeconds), request_id: requestId() };
    // R6: validity counts from before the first send; retries keep this time.
    let firstSent: bigint | undefined;
    const begin = (): void => {
      firstSent ??= nowNanos();
    };
    try {
      const answer = new Reader(await this.#inner.change("/v1/lease", body, signal, begin));
      signal?.throwIfAborted();
      const until = validUntil(firstSent ?? 0n, ttlSeconds);
      const presence = new Presence(answer.required("leaseId"), ttlSeconds, until);
      const session = new Session(this.#inner, presence);
      this.#sessions.add(session);
      session.signal.addEventListener("abort", () => this.#sessions.delete(session), { once: true });
      return session;
    } catch (error) {
      const isRefused = error instanceof LowkeyError && !error.mayHaveBeenDone;
      if (!isRefused) this.#inner.tellWork(this.#undoLease(body));
      throw error;
    }
  }

  /** Asks for a lease again that nobody wants any more, to learn its number, and ends it. */
  async #undoLease(body: Fields): Promise<void> {
    const call = { method: "POST", changesSomething: true, timeMs: 1_000 } as const;
    const made = await this.#inner.cluster.call({ ...call, path: "/v1/lease", body: () => body });
    const leaseId = new Reader(made).required("leaseId");
    const end = { lease_id: leaseId, owner_id: this.owner, request_id: requestId() };
    await this.#inner.cluster.call({ ...call, path: "/v1/lease/revoke", body: () => end });
  }

  /**
   * Stands for election, and runs the work while leading. It campaigns again, with a new session, when the lead
   * was lost, however often that happens.
   *
   * It resolves to the result of the work when the work ends while it leads, and rejects with what the work
   * throws then. What the work does after the lead was lost does not count. It should heed `lead.signal`.
   *
   * ```ts
   * await client.elect("scheduler", { value: "http://10.0.0.1:4000" }, async (lead) => {
   *   while (lead.held) await scheduleOne(lead.token, lead.signal);
   * });
   * ```
   */
  async elect<T>(name: string, options: ElectOptions, work: (lead: Leadership) => Promise<T> | T): Promise<T> {
    const rest = this.#inner.keeper.stayAwake();
    try {
      return await elect(this, name, options, work);
    } finally {
      rest();
    }
  }

  /** Who leads an election, now and at every change. */
  observe(election: string, options: { readonly signal?: AbortSignal | undefined } = {}): EventStream<LeaderEvent> {
    return observe(this.#inner.cluster, election, options.signal);
  }

  /**
   * Every change of one lock, or of all with a prefix: in order, without gaps or repeats.
   *
   * ```ts
   * for await (const change of client.watch({ prefix: "jobs/" })) {
   *   console.log(change.type, change.name, change.owner, change.token);
   * }
   * ```
   */
  watch(options: WatchOptions = {}): EventStream<WatchEvent> {
    return watch(this.#inner.cluster, options);
  }

  /** Who holds a lock, and who waits for it. */
  async get(name: string): Promise<LockInfo> {
    return readLock(new Reader(await this.#inner.read("/v1/lock", { name })));
  }

  /** All locks whose names begin with a prefix, by name. */
  async locks(prefix = ""): Promise<LockList> {
    const locks: LockInfo[] = [];
    let watchFrom: bigint | undefined;
    for await (const page of this.#pages("/v1/locks", { prefix })) {
      watchFrom ??= page.bigint("watchFrom");
      locks.push(...page.list("locks").map(readLock));
    }
    return { locks, watchFrom: watchFrom ?? 0n };
  }

  async *#pages(path: string, query: Record<string, string>): AsyncGenerator<Reader> {
    let pageToken = "";
    do {
      const position = pageToken ? { page_token: pageToken } : {};
      const page = new Reader(await this.#inner.read(path, { ...query, page_size: PAGE_SIZE, ...position }));
      yield page;
      pageToken = page.text("nextPageToken");
    } while (pageToken);
  }

  /** What a lease holds and waits for, and how long it lives if it is not renewed again. */
  async lease(leaseId: bigint): Promise<LeaseInfo> {
    const grants: GrantInfo[] = [];
    let first: Reader | undefined;
    for await (const page of this.#pages("/v1/lease", { lease_id: leaseId.toString() })) {
      first ??= page;
      grants.push(...page.list("grants").map(readGrant));
    }
    const lease = first?.one("lease") ?? new Reader(undefined);
    return {
      leaseId: lease.bigint("leaseId"),
      owner: lease.text("ownerId"),
      ttlMs: lease.number("ttlSeconds") * 1000,
      remainingMs: lease.remainingMs,
      grants,
      waitsFor: first?.list("waits").map((wait) => wait.text("lockName")) ?? [],
    };
  }

  /** Who leads an election. */
  async leader(election: string): Promise<LeaderInfo> {
    const answer = new Reader(await this.#inner.read("/v1/election/leader", { election }));
    return {
      leader: answer.has("leader") ? readHolder(answer.one("leader")) : undefined,
      candidates: answer.number("candidates"),
      revision: answer.bigint("revision"),
    };
  }

  /** Whether a token is a current one of a lock. It may be outdated when the answer arrives. */
  async checkToken(name: string, token: bigint): Promise<TokenCheck> {
    const answer = new Reader(await this.#inner.change("/v1/lock/check", { lock_name: name, fencing_token: token }));
    return {
      current: answer.flag("current"),
      holder: answer.has("holder") ? readHolder(answer.one("holder")) : undefined,
      revision: answer.bigint("revision"),
    };
  }

  /** How the asked node sees the cluster. */
  async status(): Promise<Status> {
    return readStatus(new Reader(await this.#inner.read("/v1/status", {})));
  }

  /**
   * Releases a grant of any client by its numbers. Only that very grant can be meant. Its holder learns of it
   * with its next renewal, and may act until then.
   */
  async forceRelease(name: string, leaseId: bigint, token: bigint): Promise<void> {
    if (token < 1n) throw new InvalidArgumentError("0 is no fencing token: the grant's token is needed, from 1");
    const body = { lock_name: name, lease_id: leaseId, fencing_token: token, actor: this.owner };
    await this.#inner.change("/v1/lock/release", { ...body, request_id: requestId() });
  }

  /**
   * Ends a lease of any client, with all that it holds. Its owner must be named, so that no other can be meant.
   * The holder learns of it with its next renewal, and may act until then.
   */
  async revokeLease(leaseId: bigint, owner: string): Promise<void> {
    const body = { lease_id: leaseId, owner_id: owner, actor: this.owner, request_id: requestId() };
    await this.#inner.change("/v1/lease/revoke", body);
  }

  /**
   * Ends all sessions, waits until the service has heard of that and of all releases under way, and closes all
   * connections. Belief ends first. Rejects if no node answers in time.
   */
  async close(): Promise<void> {
    const closing = [...this.#sessions].map((session) => session[Symbol.asyncDispose]());
    const timer = new AbortController();
    const isFlushed = Promise.all(closing).then(() => this.#inner.flush());
    await Promise.race([isFlushed, sleep(this.#inner.callTimeoutMs, timer.signal)]);
    timer.abort();
    const isLeft = this.#inner.hasTold;
    this.#inner.close();
    if (isLeft) throw new UnavailableError("releases are left that no node has answered", { outcomeUnknown: true });
  }

  /** Closes the client. It never rejects. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close().catch(() => undefined);
  }
}
