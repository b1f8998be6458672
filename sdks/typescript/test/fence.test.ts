/** Fencing on a real PostgreSQL, with `pg`. */
import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { after, before, describe, test } from "node:test";
import pg from "pg";
import { claim, fenced, present, StaleTokenError } from "../src/fence.js";
import { eventually, freePort, needs, PROJECT } from "./cluster.js";

/** What `lowkey fence sql postgres` prints. */
const SQL = join(PROJECT, "crates/lowkey-fence/sql/postgres.sql");

function findProgram(name: string): string | undefined {
  const versions = "/usr/lib/postgresql";
  const installed = existsSync(versions) ? readdirSync(versions).map((version) => join(versions, version, "bin")) : [];
  const folders = [...(process.env["PATH"] ?? "").split(delimiter), ...installed];
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

/** PostgreSQL refuses to run as root: then it runs as the user that its package made, or as nobody. */
function lesserUser(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined;
  const users = readFileSync("/etc/passwd", "utf8").split("\n").map((line) => line.split(":"));
  const user = ["postgres", "nobody"].map((name) => users.find(([one]) => one === name)).find((one) => one !== undefined);
  return { uid: Number(user?.[2]), gid: Number(user?.[3]) };
}

const programs = [findProgram("initdb"), findProgram("postgres")] as const;
const skip = !existsSync(SQL)
  ? "skipped: crates/lowkey-fence is not here"
  : needs(programs[0] && programs[1], "no PostgreSQL (initdb, postgres)");

describe("fencing in PostgreSQL", { skip }, () => {
  let folder: string;
  let server: ChildProcess;
  let pool: pg.Pool;

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "lowkey-pg-"));
    const user = lesserUser();
    if (user) chownSync(folder, user.uid, user.gid);
    const data = join(folder, "data");
    const options = { ...user, stdio: "ignore", cwd: folder } as const;
    execFileSync(programs[0] ?? "", ["-D", data, "-U", "postgres", "-A", "trust", "-N"], options);
    const port = await freePort();
    const settings = ["-h", "127.0.0.1", "-p", String(port), "-k", folder, "-F"];
    server = spawn(programs[1] ?? "", ["-D", data, ...settings], options);
    pool = new pg.Pool({ host: "127.0.0.1", port, user: "postgres", database: "postgres", max: 8 });
    await eventually("PostgreSQL answers", async () => (await pool.query("SELECT 1")).rowCount ?? undefined);
    await pool.query(readFileSync(SQL, "utf8"));
    await pool.query("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, writer bigint NOT NULL)");
    await pool.query("INSERT INTO accounts VALUES (7, 0, 0)");
  });

  after(async () => {
    await pool.end();
    // Waits for connections that are still closing: those that it ends itself are errors without a listener.
    server.kill("SIGTERM");
    await new Promise((resolve) => server.once("exit", resolve));
    rmSync(folder, { recursive: true });
  });

  test("a stale token is refused, and nothing of its transaction is written", async () => {
    const write = (token: bigint, balance: number): Promise<unknown> =>
      fenced(pool, "rule", { token }, (db) => db.query("UPDATE accounts SET balance = $1 WHERE id = 7", [balance]));
    await write(33n, 100);
    await write(33n, 101);
    await claim(pool, "rule", { token: 34n });
    await assert.rejects(write(33n, 666), (error) => {
      assert.ok(error instanceof StaleTokenError);
      assert.deepEqual([error.reason, error.resource, error.token, error.exclusive], ["STALE_TOKEN", "rule", 33n, 34n]);
      return true;
    });
    const { rows } = (await pool.query("SELECT balance FROM accounts WHERE id = 7")) as { rows: { balance: string }[] };
    assert.equal(rows[0]?.balance, "101");
    assert.equal(pool.waitingCount + pool.totalCount - pool.idleCount, 0, "no connection is left in use");
  });

  test("shared tokens have a mark of their own, and 64 bits are kept", async () => {
    const big = 2n ** 63n - 2n;
    await claim(pool, "shared", { token: 10n, mode: "shared" });
    await claim(pool, "shared", { token: 9n, mode: "shared" });
    await assert.rejects(claim(pool, "shared", { token: 9n }), StaleTokenError);
    await claim(pool, "shared", { token: big });
    await assert.rejects(claim(pool, "shared", { token: big - 1n, mode: "shared" }), StaleTokenError);
    await claim(pool, "shared", { token: big + 1n });
    for (const token of [0n, -1n, 2n ** 63n]) await assert.rejects(claim(pool, "shared", { token }), TypeError);
  });

  test("what the work throws rolls back, and one connection will do", async () => {
    const connection = await pool.connect();
    try {
      const failing = fenced(connection, "thrown", { token: 1n }, async (db) => {
        await db.query("UPDATE accounts SET balance = 666 WHERE id = 7");
        throw new Error("the work failed");
      });
      await assert.rejects(failing, /the work failed/);
      await connection.query("BEGIN");
      await present(connection, "thrown", { token: 5n });
      await connection.query("COMMIT");
      await assert.rejects(claim(connection, "thrown", { token: 4n }), StaleTokenError);
    } finally {
      connection.release();
    }
  });

  test("of writers side by side none that was overtaken writes", async (context) => {
    const rounds = 300;
    let refused = 0;
    await pool.query("CREATE TABLE history (number serial PRIMARY KEY, token bigint NOT NULL)");
    const write = async (token: bigint): Promise<void> => {
      try {
        await fenced(pool, "history", { token }, (db) => db.query("INSERT INTO history (token) VALUES ($1)", [token.toString()]));
      } catch (error) {
        assert.ok(error instanceof StaleTokenError);
        refused += 1;
      }
    };
    const tokens = Array.from({ length: rounds }, () => BigInt(1 + Math.floor(Math.random() * 1_000)));
    await Promise.all(tokens.map(write));
    const { rows } = (await pool.query("SELECT token FROM history ORDER BY number")) as { rows: { token: string }[] };
    const accepted = rows.map(({ token }) => BigInt(token));
    assert.equal(accepted.length + refused, rounds);
    assert.deepEqual(accepted, [...accepted].sort((one, other) => Number(one - other)), "accepted tokens never go back");
    assert.ok(refused > 0, "some were overtaken");
    context.diagnostic(`${rounds} writes: ${accepted.length} accepted, ${refused} refused`);
  });
});
