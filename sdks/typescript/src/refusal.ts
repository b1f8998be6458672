/** Turns an answer of the service that is an error into the error that the caller is told. */
import { type HeldBy, InvalidArgumentError, LockHeldError, type LowkeyError, RefusedError, WaitTimeoutError } from "./errors.js";
import { meaningOf } from "./reasons.js";

/** An answer that is an error. */
export interface Refusal {
  readonly status: number;
  /** `undefined` if it is not an answer of the service, but of a proxy, say. */
  readonly reason: string | undefined;
  readonly message: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** When to ask again, as the service hints; 0 if it does not. */
  readonly hintMs: number;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

/** Reads an answer with an error status. Nothing in it is taken for granted. */
export function readRefusal(status: number, body: string, retryAfter: string | undefined): Refusal {
  const afterHeader = /^\d{1,6}$/.test(retryAfter ?? "") ? Number(retryAfter) * 1000 : 0;
  let parsed: unknown;
  try {
    parsed = JSON.parse(body);
  } catch {
    parsed = undefined;
  }
  const reason = isRecord(parsed) ? text(parsed["reason"]) : undefined;
  if (!isRecord(parsed) || reason === undefined) {
    const message = `HTTP status ${status} with a body that is no answer of lowkey`;
    return { status, reason: undefined, message, metadata: {}, hintMs: afterHeader };
  }
  let metadata: Record<string, string> = {};
  let hintMs = afterHeader;
  for (const detail of Array.isArray(parsed["details"]) ? (parsed["details"] as unknown[]) : []) {
    if (!isRecord(detail)) continue;
    const type = text(detail["@type"]) ?? "";
    if (type.endsWith("google.rpc.ErrorInfo") && isRecord(detail["metadata"])) {
      const entries = Object.entries(detail["metadata"]).map(([key, value]) => [key, String(value)] as const);
      metadata = Object.fromEntries(entries);
    }
    const delay = /^(\d{1,6}(?:\.\d{1,9})?)s$/.exec(text(detail["retryDelay"]) ?? "");
    if (type.endsWith("google.rpc.RetryInfo") && delay) hintMs = Number(delay[1]) * 1000;
  }
  return { status, reason, message: text(parsed["message"]) ?? reason, metadata, hintMs };
}

function bigint(value: string | undefined): bigint {
  return value !== undefined && /^\d{1,20}$/.test(value) ? BigInt(value) : 0n;
}

function heldBy(metadata: Readonly<Record<string, string>>): HeldBy | undefined {
  const name = metadata["held_name"] ?? metadata["lock_name"];
  const owner = metadata["owner_id"];
  if (name === undefined || owner === undefined) return undefined;
  return {
    name,
    owner,
    leaseId: bigint(metadata["lease_id"]),
    token: bigint(metadata["fencing_token"]),
    sinceUnixMs: Number(bigint(metadata["since_unix_ms"])),
    waiters: Number(bigint(metadata["waiters"])),
  };
}

/** The error that a caller is told. */
export function refusalError(refusal: Refusal): LowkeyError {
  const { reason, status, message, metadata: details } = refusal;
  const facts = { reason, details, ...meaningOf(reason, status) };
  if (reason === "LOCK_HELD") return new LockHeldError(message, heldBy(details), facts);
  if (reason === "WAIT_TIMEOUT") return new WaitTimeoutError(message, heldBy(details), facts);
  if (reason?.startsWith("INVALID_")) return new InvalidArgumentError(message, facts);
  return new RefusedError(message, facts);
}
