/** The reasons of the service, and what each means for a client. The names never change their meaning. */

/** What a client may do about a refusal. */
interface Meaning {
  /** The same request may succeed later or on another node. The client asks again by itself. */
  readonly retryable: boolean;
  /** It may have been done. */
  readonly outcomeUnknown: boolean;
}

const FINAL: Meaning = { retryable: false, outcomeUnknown: false };
const RETRY: Meaning = { retryable: true, outcomeUnknown: false };

const TABLE: ReadonlyMap<string, Meaning> = new Map<string, Meaning>([
  ...[
    "NODE_REMOVED",
    "NODE_STOPPING",
    "NODE_DIVERGED",
    "NO_LEADER",
    "NO_QUORUM",
    "UPGRADE_UNDER_WAY",
    "RECOVERING",
    "LIMIT_BUSY",
    "LIMIT_IN_FLIGHT",
    "LIMIT_STREAMS",
    "LIMIT_MEMORY",
    "LIMIT_CONNECTIONS",
    "LIMIT_DISK",
  ].map((reason): [string, Meaning] => [reason, RETRY]),
  ...["LIMIT_LEASES", "LIMIT_MEMBERS", "LIMIT_LOCKS_PER_LEASE", "LIMIT_WAITERS"].map(
    (reason): [string, Meaning] => [reason, FINAL],
  ),
  ["OUTCOME_UNKNOWN", { retryable: true, outcomeUnknown: true }],
  ["INTERNAL", { retryable: false, outcomeUnknown: true }],
]);

/**
 * What a refusal means. A reason that this client does not know, or no reason at all, is judged by the HTTP
 * status; 0 stands for no answer.
 */
export function meaningOf(reason: string | undefined, status: number): Meaning {
  const known = reason === undefined ? undefined : TABLE.get(reason);
  if (known) return known;
  if (status === 429) return RETRY;
  if (status === 0 || status >= 500) return { retryable: true, outcomeUnknown: true };
  return FINAL;
}

/** Reasons for which another node may do better than the one that gave them. */
export function isAboutTheNode(reason: string | undefined): boolean {
  return reason === undefined || /^(NO_LEADER|NO_QUORUM|NODE_|OUTCOME_UNKNOWN|LIMIT_(STREAMS|CONNECTIONS|MEMORY))/.test(reason);
}
