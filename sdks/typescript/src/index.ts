/**
 * Distributed locks and leader election with lowkey.
 *
 * - {@link Client} is the entry point.
 * - {@link Session} is a lease that renews itself; {@link Session.lock} acquires a lock.
 * - {@link LockGuard} knows at any time whether the lock is held, and has its fencing token.
 *
 * @module
 */
export { Client } from "./client.js";
export type { ClientOptions, LeaderInfo, LockList, SessionOptions, TokenCheck } from "./client.js";
export { Leadership } from "./election.js";
export type { ElectOptions } from "./election.js";
export {
  BeliefEndedError,
  InvalidArgumentError,
  LockHeldError,
  LockLostError,
  LowkeyError,
  RefusedError,
  SessionLostError,
  UnavailableError,
  WaitTimeoutError,
  WrongClusterError,
} from "./errors.js";
export type { ErrorFacts, HeldBy, LossCause } from "./errors.js";
export { LockGuard } from "./lock.js";
export type { LockOptions, TryLockOptions } from "./lock.js";
export { Session } from "./session.js";
export type { CampaignOptions, SessionStatus } from "./session.js";
export { EventStream } from "./watch.js";
export type { ChangeType, LeaderEvent, WatchEvent, WatchOptions } from "./watch.js";
export type { GrantInfo, Holder, LeaseInfo, LockInfo, Mode, Scope, Status, Waiter } from "./wire.js";
