/**
 * The keeper: one timer for each client, which renews all of its leases and watches the clock.
 *
 * A lease is renewed when a third of its time to live has passed. Only the client's own clock counts (R6): each
 * answer is credited to the moment before its request was sent, and a lease whose validity has run out is lost
 * at that moment, no matter what the network does.
 */
import { nowNanos } from "./clock.js";
import { type Cluster, parseFields } from "./cluster.js";
import { LowkeyError } from "./errors.js";
import { type Grant, releaseByToken } from "./grant.js";
import type { Inner } from "./inner.js";
import type { Presence, RenewalUnderWay } from "./presence.js";
import { upTo } from "./random.js";
import { isAboutTheNode } from "./reasons.js";
import type { CopyFailure } from "./retry.js";
import type { Endpoint } from "./transport.js";
import { type GrantInfo, readGrant, Reader } from "./wire.js";

/** The clock is read at least this often, because it may have gone on while timers stood still. */
const LOOK_INTERVAL_MS = 100;
/** How soon a failed renewal is tried again, at most. */
const AGAIN_MS = 100;
/** How many renewals of one lease may be unanswered at once. */
const RENEWALS_AT_ONCE = 3;
const PATIENCE_MIN_NANOS = 150_000_000n;
const PATIENCE_MAX_NANOS = 1_000_000_000n;
const PAGE_SIZE = "1000";

type Renewed = Awaited<ReturnType<Cluster["renew"]>>;

export class Keeper {
  readonly #cluster: Cluster;
  readonly #presences = new Set<Presence>();
  /** Grants that are held for a limited time. */
  readonly #limited = new Set<Grant>();
  /** Nodes that are too old to know `holds`. It only advises, so it is left out for them. */
  readonly #withoutHolds = new WeakSet<Endpoint>();
  #timer: NodeJS.Timeout | undefined;
  #wakers = 0;
  #inner: Inner | undefined;

  constructor(cluster: Cluster) {
    this.#cluster = cluster;
  }

  set inner(inner: Inner) {
    this.#inner = inner;
  }

  /** Keeps a lease alive until it is lost. */
  keep(presence: Presence): void {
    this.#presences.add(presence);
    this.#timer ??= this.#arm(1);
  }

  /** Ends belief in a grant when its own time is over. */
  limit(grant: Grant): void {
    this.#limited.add(grant);
  }

  /** Stops keeping a lease. */
  forget(presence: Presence): void {
    this.#presences.delete(presence);
  }

  /**
   * Somebody waits for what the keeper may tell, so that the process must not end. Otherwise the keeper's timer
   * does not keep it alive. Returns what ends that.
   */
  stayAwake(): () => void {
    this.#wakers += 1;
    this.#timer?.ref();
    let isAwake = true;
    return () => {
      if (!isAwake) return;
      isAwake = false;
      this.#wakers -= 1;
      if (this.#wakers === 0) this.#timer?.unref();
    };
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#presences.clear();
    this.#limited.clear();
  }

  #arm(ms: number): NodeJS.Timeout {
    const timer = setTimeout(() => {
      this.#tick();
    }, ms);
    if (this.#wakers === 0) timer.unref();
    return timer;
  }

  #tick(): void {
    const now = nowNanos();
    let next = now + BigInt(LOOK_INTERVAL_MS) * 1_000_000n;
    for (const presence of this.#presences) {
      // R6: a lease that is no longer valid is lost, no matter what the service would say.
      if (!presence.validity.holdsAt(now)) presence.lose("expired");
      if (presence.signal.aborted) {
        this.#presences.delete(presence);
        continue;
      }
      this.#doubtSilence(presence, now);
      if (presence.nextRenewalNanos <= now) this.#renew(presence, now);
      if (presence.nextRenewalNanos < next) next = presence.nextRenewalNanos;
      if (presence.validity.untilNanos < next) next = presence.validity.untilNanos;
    }
    for (const grant of this.#limited) {
      const until = grant.granted.untilNanos;
      if (!grant.isHeld || until === undefined) this.#limited.delete(grant);
      else if (until < next) next = until;
    }
    const pauseMs = Math.max(Math.ceil(Number(next - nowNanos()) / 1e6), 1);
    this.#timer = this.#presences.size > 0 ? this.#arm(pauseMs) : undefined;
  }

  /** A node that says nothing for a while is left for another one. Its late answer still counts. */
  #doubtSilence(presence: Presence, now: bigint): void {
    if (presence.renewals.size === 0) return;
    const sixth = presence.ttlNanos / 6n;
    const patience = sixth < PATIENCE_MIN_NANOS ? PATIENCE_MIN_NANOS : sixth > PATIENCE_MAX_NANOS ? PATIENCE_MAX_NANOS : sixth;
    for (const renewal of presence.renewals) {
      if (renewal.isDoubted || now - renewal.sentNanos < patience) continue;
      renewal.isDoubted = true;
      this.#cluster.doubt(renewal.endpoint);
      presence.nextRenewalNanos = now;
    }
  }

  #renew(presence: Presence, now: bigint): void {
    // The answer changes this plan. If none comes, this is the time of the next attempt.
    presence.nextRenewalNanos = now + presence.ttlNanos / 6n;
    if (presence.renewals.size + presence.renewalsInLine >= RENEWALS_AT_ONCE) return;
    presence.renewalsInLine += 1;
    let renewal: RenewalUnderWay | undefined;
    const begin = (endpoint: Endpoint): void => {
      presence.renewalsInLine -= 1;
      renewal = { endpoint, sentNanos: nowNanos(), isDoubted: false };
      presence.renewals.add(renewal);
    };
    const body = (): Record<string, unknown> => {
      const isTold = renewal !== undefined && !this.#withoutHolds.has(renewal.endpoint);
      return { lease_id: presence.leaseId, ...(isTold ? { holds: presence.beliefs.holds.toWire() } : {}) };
    };
    const timeMs = Number(presence.ttlNanos / 2n / 1_000_000n);
    const call = { method: "POST", path: "/v1/lease/renew", body, timeMs, quiet: true, signal: presence.signal } as const;
    void this.#cluster.renew(call, begin).then((outcome) => {
      if (!renewal) return;
      presence.renewals.delete(renewal);
      if (this.#presences.has(presence)) this.#takeIn(presence, renewal, outcome);
    });
  }

  #takeIn(presence: Presence, renewal: RenewalUnderWay, outcome: Renewed): void {
    if (outcome.kind !== "done") {
      this.#notRenewed(presence, renewal, outcome);
      return;
    }
    const answer = new Reader(parseFields(outcome.answer.text));
    if (!answer.has("ttlSeconds")) {
      this.#notRenewed(presence, renewal, { kind: "no-answer", problem: "no answer of lowkey", sent: true });
      return;
    }
    presence.validity.renewed(renewal.sentNanos, nowNanos());
    // Too late: it stays lost, and this says so.
    if (!presence.isValid) return;
    const next = renewal.sentNanos + presence.ttlNanos / 3n;
    if (next > presence.nextRenewalNanos || presence.renewals.size === 0) presence.nextRenewalNanos = next;
    if (answer.flag("holdsDiffer")) this.#read(presence);
  }

  #notRenewed(presence: Presence, renewal: RenewalUnderWay, failure: CopyFailure): void {
    const refusal = failure.kind === "refused" ? failure.refusal : undefined;
    if (refusal?.reason === "LEASE_NOT_FOUND") {
      this.#presences.delete(presence);
      presence.lose("gone");
      return;
    }
    const now = nowNanos();
    if (refusal?.reason === "UNKNOWN_FIELD" && refusal.metadata["field"] === "holds") {
      this.#withoutHolds.add(renewal.endpoint);
      presence.nextRenewalNanos = now;
      return;
    }
    if (isAboutTheNode(refusal?.reason)) this.#cluster.doubt(renewal.endpoint);
    presence.nextRenewalNanos = now + BigInt(Math.round(upTo(AGAIN_MS) * 1e6));
  }

  /** Reads what a lease holds, because the service holds something else than is believed. One read at a time. */
  #read(presence: Presence): void {
    if (presence.isBeingRead) return;
    presence.isBeingRead = true;
    const believed = presence.beliefs.tokens;
    void this.#readGrants(presence)
      .then((grants) => {
        this.#compare(presence, believed, grants);
      })
      .catch((error: unknown) => {
        // If it could not be read, the next renewal reports the difference again.
        if (error instanceof LowkeyError && error.reason === "LEASE_NOT_FOUND") presence.lose("gone");
      })
      .finally(() => (presence.isBeingRead = false));
  }

  async #readGrants(presence: Presence): Promise<GrantInfo[]> {
    const grants: GrantInfo[] = [];
    const timeMs = Number(presence.ttlNanos / 2n / 1_000_000n);
    let pageToken = "";
    do {
      const query = new URLSearchParams({ lease_id: presence.leaseId.toString(), page_size: PAGE_SIZE });
      if (pageToken) query.set("page_token", pageToken);
      const path = `/v1/lease?${query.toString()}`;
      const call = { method: "GET", path, changesSomething: false, timeMs, quiet: true } as const;
      const page = new Reader(await this.#cluster.call({ ...call, signal: presence.signal }));
      if (!page.has("lease")) throw new Error("an answer without a lease");
      grants.push(...page.list("grants").map(readGrant));
      pageToken = page.text("nextPageToken");
    } while (pageToken);
    return grants;
  }

  /** Ends belief in grants that are gone, and releases grants that nobody wants: see `beliefs.ts`. */
  #compare(presence: Presence, believed: readonly bigint[], grants: readonly GrantInfo[]): void {
    const { lost, orphans } = presence.beliefs.judge(believed, grants);
    for (const grant of lost) grant.releasedElsewhere();
    for (const { name, token } of orphans) {
      // While a caller asks for the name it may be given this very grant, and that answer may be under way.
      const turn = presence.doors.tryEnter(name);
      if (!turn) continue;
      this.#inner?.tellRelease(presence, releaseByToken(name, presence.leaseId, token), () => {
        turn.end();
      });
    }
  }
}
