/**
 * Fencing in PostgreSQL: refuse writes of a holder that lost its lock.
 *
 * The lock is not the safety mechanism; the check at the resource is. The database keeps the highest tokens that
 * it accepted, and refuses lower ones in the same transaction in which it writes. `lowkey fence sql postgres`
 * prints the table and the function to install.
 *
 * It works with `pg`, and with anything that has its `query(text, values)`. Nothing here talks to the lock service.
 *
 * @module
 */

/** A connection to PostgreSQL: a `pg` client, or something that has its `query`. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<unknown>;
}

/** A `pg` pool. */
export interface Pool {
  readonly totalCount: number;
  connect(): Promise<Queryable & { release(error?: Error | boolean): void }>;
}

/** What is presented to the resource: a guard, or its numbers. */
export interface Fence {
  /** The fencing token. */
  readonly token: bigint;
  /** `exclusive` if left out. */
  readonly mode?: "exclusive" | "shared" | undefined;
}

/** The SQLSTATE of a refusal. */
const REFUSED = "LK001";
const TOKEN_MAX = 2n ** 63n - 1n;

/**
 * The resource has accepted a higher token: your lock is gone. Stop, and do not retry. The transaction is rolled
 * back, so nothing of it was written.
 */
export class StaleTokenError extends Error {
  /** As the service names it. */
  readonly reason = "STALE_TOKEN";
  /** The resource. */
  readonly resource: string;
  /** The token that was refused. */
  readonly token: bigint;
  /** The highest exclusive token that was accepted. */
  readonly exclusive: bigint;
  /** The highest shared token that was accepted. */
  readonly shared: bigint;

  constructor(resource: string, token: bigint, exclusive: bigint, shared: bigint, cause?: unknown) {
    const highest = exclusive > shared ? exclusive : shared;
    super(
      `${resource} refused token ${token.toString()}, since it has accepted ${highest.toString()}: ` +
        "your lock is gone: stop, do not retry",
      { cause },
    );
    this.name = "StaleTokenError";
    this.resource = resource;
    this.token = token;
    this.exclusive = exclusive;
    this.shared = shared;
  }
}

/**
 * Presents a token within a transaction that has begun, before its first read. Rejects with a
 * {@link StaleTokenError} if a later holder was there first; the transaction is then aborted.
 */
export async function present(transaction: Queryable, resource: string, fence: Fence): Promise<void> {
  const { token, mode } = fence;
  if (typeof token !== "bigint" || token < 1n || token > TOKEN_MAX) {
    throw new TypeError("a fencing token is a bigint from 1");
  }
  try {
    // As text: a bigint column has 64 bits, and a number of this language only 53.
    const values = [resource, token.toString(), mode === "shared"];
    await transaction.query("SELECT lowkey_fence($1::text, $2::bigint, $3::boolean)", values);
  } catch (error) {
    throw refusal(error, resource, token) ?? error;
  }
}

/**
 * Claims a resource for a new holder, before it reads anything that its writes depend on. From then on no earlier
 * holder writes. Not needed where one transaction reads and writes: {@link fenced}.
 */
export async function claim(db: Queryable | Pool, resource: string, fence: Fence): Promise<void> {
  await fenced(db, resource, fence, () => undefined);
}

/**
 * Runs work in a transaction that presents the token first. Read and write in it, by the connection that the work
 * is given. Until it ends, other holders wait.
 *
 * ```ts
 * await fenced(pool, "accounts", guard, async (transaction) => {
 *   await transaction.query("UPDATE accounts SET balance = balance - 10 WHERE id = 7");
 * });
 * ```
 */
export async function fenced<T>(
  db: Queryable | Pool,
  resource: string,
  fence: Fence,
  work: (transaction: Queryable) => Promise<T> | T,
): Promise<T> {
  if (!("totalCount" in db)) return transact(db, resource, fence, work);
  // The statements of a transaction must go over one connection.
  const connection = await db.connect();
  let broken: Error | undefined;
  try {
    return await transact(connection, resource, fence, work, (error) => (broken = error));
  } finally {
    connection.release(broken);
  }
}

async function transact<T>(
  connection: Queryable,
  resource: string,
  fence: Fence,
  work: (transaction: Queryable) => Promise<T> | T,
  onBroken: (error: Error) => void = () => undefined,
): Promise<T> {
  await connection.query("BEGIN");
  try {
    await present(connection, resource, fence);
    const result = await work(connection);
    await connection.query("COMMIT");
    return result;
  } catch (error) {
    await connection.query("ROLLBACK").catch((failure: unknown) => {
      onBroken(failure instanceof Error ? failure : new Error(String(failure)));
    });
    throw error;
  }
}

function refusal(error: unknown, resource: string, token: bigint): StaleTokenError | undefined {
  if (typeof error !== "object" || error === null) return undefined;
  const { code, detail } = error as { code?: unknown; detail?: unknown };
  if (code !== REFUSED) return undefined;
  const marks = /exclusive=(\d+) shared=(\d+)/.exec(typeof detail === "string" ? detail : "");
  return new StaleTokenError(resource, token, BigInt(marks?.[1] ?? 0), BigInt(marks?.[2] ?? 0), error);
}
