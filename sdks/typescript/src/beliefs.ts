/**
 * What a client believes that its lease holds, and how it compares that with what the service says.
 *
 * Every renewal carries count and digest of the tokens that are believed in. If the leader's differ, the lease
 * is read. Then:
 *
 * - A token that was believed in before the read, and is not there, is lost: somebody else released it.
 * - A grant that is not believed in is left alone. Its answer may be under way, or it belongs to another program
 *   that uses the lease. Only if it was granted to an acquire that this client made and gave up, it is released
 *   by its token: it would be renewed for ever.
 */
import { Holds } from "./holds.js";
import type { GrantInfo } from "./wire.js";

/** How many given-up acquires are remembered: more than can be under way, or are remembered by the service. */
const GIVEN_UP_MAX = 1_024;

/** What follows from what a lease holds. */
export interface Verdict<G> {
  /** Believed in until now, and gone. */
  readonly lost: readonly G[];
  /** Grants that nobody wants. */
  readonly orphans: readonly { readonly name: string; readonly token: bigint }[];
}

/** `G` is what is held. Invariant: `holds` describes exactly the tokens in `held`. */
export class Beliefs<G> {
  readonly holds = new Holds();
  readonly #held = new Map<bigint, G>();
  /** Request ids of acquires, the oldest first. */
  readonly #givenUp = new Set<string>();

  add(token: bigint, grant: G): void {
    if (!this.#held.has(token)) this.holds.add(token);
    this.#held.set(token, grant);
  }

  /** Ends belief in a token, for any reason. */
  remove(token: bigint): G | undefined {
    const grant = this.#held.get(token);
    if (this.#held.delete(token)) this.holds.remove(token);
    return grant;
  }

  /** Notes that nobody waits for this acquire any more. */
  giveUp(acquireRequestId: string): void {
    this.#givenUp.add(acquireRequestId);
    if (this.#givenUp.size > GIVEN_UP_MAX) {
      for (const oldest of this.#givenUp) {
        this.#givenUp.delete(oldest);
        break;
      }
    }
  }

  get tokens(): bigint[] {
    return [...this.#held.keys()];
  }

  get grants(): G[] {
    return [...this.#held.values()];
  }

  /** Judges what the lease holds. It was read after `believed` was believed in. */
  judge(believed: readonly bigint[], grants: readonly Pick<GrantInfo, "name" | "token" | "acquireRequestId">[]): Verdict<G> {
    const there = new Set(grants.map((grant) => grant.token));
    const lost: G[] = [];
    for (const token of believed) {
      const grant = there.has(token) ? undefined : this.remove(token);
      if (grant !== undefined) lost.push(grant);
    }
    const orphans = grants.filter(
      (grant) => this.#givenUp.has(grant.acquireRequestId) && !this.#held.has(grant.token),
    );
    return { lost, orphans: orphans.map(({ name, token }) => ({ name, token })) };
  }
}
