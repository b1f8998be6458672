/**
 * What a lease holds, in two numbers: how many locks, and a digest of their tokens.
 *
 * Every renewal carries them. If the leader's differ, the client reads its lease. The digest is the exclusive
 * or of {@link mix} over all tokens: no order matters, and a token is added and taken out by the same step.
 */

const U64 = 0xffff_ffff_ffff_ffffn;

/** Spreads a token over 64 bits: the finishing steps of SplitMix64, as every client does them. */
export function mix(token: bigint): bigint {
  let mixed = (token + 0x9e37_79b9_7f4a_7c15n) & U64;
  mixed = ((mixed ^ (mixed >> 30n)) * 0xbf58_476d_1ce4_e5b9n) & U64;
  mixed = ((mixed ^ (mixed >> 27n)) * 0x94d0_49bb_1331_11ebn) & U64;
  return mixed ^ (mixed >> 31n);
}

/** Count and digest of a set of tokens. The caller adds and removes each token once. */
export class Holds {
  count = 0;
  digest = 0n;

  add(token: bigint): void {
    this.count += 1;
    this.digest ^= mix(token);
  }

  remove(token: bigint): void {
    this.count -= 1;
    this.digest ^= mix(token);
  }

  /** As a renewal carries it. */
  toWire(): { count: number; digest: string } {
    return { count: this.count, digest: this.digest.toString() };
  }
}
