/** Sessions and locks against a real node. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, describe, test } from "node:test";
import { Client, InvalidArgumentError, LockHeldError, LockLostError, SessionLostError, WaitTimeoutError } from "../src/index.js";
import { eventually, NODES, TestCluster } from "./cluster.js";

describe("locks", NODES, () => {
  let cluster: TestCluster;
  let client: Client;
  let other: Client;

  before(async () => {
    cluster = await TestCluster.start();
    client = new Client({ endpoints: cluster.endpoints, owner: "one" });
    other = new Client({ endpoints: cluster.endpoints, owner: "other" });
  });

  after(async () => {
    await client.close();
    await other.close();
    await cluster[Symbol.asyncDispose]();
  });

  test("a lock is held, and free again after its block", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    {
      await using guard = await session.lock("block", { value: "hello" });
      assert.equal(typeof guard.token, "bigint");
      assert.ok(guard.held && !guard.signal.aborted && guard.remainingMs > 5_000);
      const [holder] = (await client.get("block")).holders;
      assert.deepEqual([holder?.owner, holder?.token, holder?.value], ["one", guard.token, "hello"]);
    }
    assert.equal((await client.get("block")).holderCount, 0);
  });

  test("somebody else is told who holds it", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using guard = await session.lock("taken");
    await using rival = await other.session({ ttlMs: 10_000 });
    await assert.rejects(rival.tryLock("taken"), (error) => {
      assert.ok(error instanceof LockHeldError);
      assert.equal(error.reason, "LOCK_HELD");
      assert.deepEqual([error.heldBy?.owner, error.heldBy?.token], ["one", guard.token]);
      return true;
    });
    await assert.rejects(rival.lock("taken", { timeoutMs: 50 }), WaitTimeoutError);
  });

  test("a waiter gets it when it is released, with a higher token", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    const guard = await session.lock("handed over");
    await using rival = await other.session({ ttlMs: 10_000 });
    const waiting = rival.lock("handed over");
    await eventually("somebody waits", async () => (await client.get("handed over")).waiterCount === 1 || undefined);
    const seen: boolean[] = [];
    guard.signal.addEventListener("abort", () => seen.push(guard.held));
    await guard.release();
    assert.ok(!guard.held && guard.signal.aborted && guard.lossCause === "closed");
    assert.deepEqual(seen, [false], "belief had ended when the signal came");
    await using next = await waiting;
    assert.ok(next.token > guard.token);
  });

  test("an aborted wait leaves the queue, and its lock goes to the next", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using guard = await session.lock("given up");
    await using rival = await other.session({ ttlMs: 10_000 });
    const controller = new AbortController();
    const waiting = rival.lock("given up", { signal: controller.signal });
    await eventually("somebody waits", async () => (await client.get("given up")).waiterCount === 1 || undefined);
    controller.abort(new Error("no longer wanted"));
    await assert.rejects(waiting, /no longer wanted/);
    await eventually("nobody waits", async () => (await client.get("given up")).waiterCount === 0 || undefined);
    assert.ok(guard.held);
    await assert.rejects(rival.lock("given up", { signal: AbortSignal.abort() }), { name: "AbortError" });
  });

  test("readers share a lock, and callers of one session share one grant", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using rival = await other.session({ ttlMs: 10_000 });
    const first = await session.lock("shared", { mode: "shared" });
    const second = await session.lock("shared", { mode: "shared" });
    await using third = await rival.tryLock("shared", { mode: "shared" });
    assert.equal(first.token, second.token);
    assert.notEqual(first.token, third.token);
    await first.release();
    assert.ok(!first.held && first.signal.aborted);
    assert.ok(second.held && !second.signal.aborted);
    await second.release();
    assert.equal((await client.get("shared")).holderCount, 1);
  });

  test("callers of one session take turns", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    const first = await session.lock("turns");
    await assert.rejects(session.tryLock("turns"), LockHeldError);
    await assert.rejects(session.lock("turns", { timeoutMs: 20 }), WaitTimeoutError);
    const second = session.lock("turns");
    const release = first.release();
    await using guard = await second;
    await release;
    assert.ok(guard.held && guard.token > first.token);
  });

  test("a subtree covers what is below it", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using rival = await other.session({ ttlMs: 10_000 });
    await using guard = await session.lock("tree", { scope: "subtree" });
    assert.equal(guard.scope, "subtree");
    await assert.rejects(rival.tryLock("tree/leaf"), { reason: "LOCK_HELD" });
  });

  test("closing a session ends belief at once, and frees all that it holds", async () => {
    const session = await client.session({ ttlMs: 10_000 });
    const guard = await session.lock("closed");
    const closing = session.close();
    assert.ok(!guard.held && !session.held && guard.signal.aborted && session.signal.aborted);
    await closing;
    assert.equal((await client.get("closed")).holderCount, 0);
    await assert.rejects(session.lock("closed"), SessionLostError);
    assert.equal(await guard.lost(), "closed");
    await guard.release();
  });

  test("a lease that was revoked is known with the next renewal", async () => {
    await using session = await client.session({ ttlMs: 6_000 });
    const guard = await session.lock("revoked");
    await other.revokeLease(session.leaseId, "one");
    assert.equal(await guard.lost(), "gone");
    assert.equal(session.status, "lost");
    assert.throws(() => {
      guard.check();
    }, LockLostError);
    await assert.rejects(guard.release(), SessionLostError);
  });

  test("a grant that was released by force is known with the next renewal, and the session goes on", async () => {
    await using session = await client.session({ ttlMs: 3_000 });
    const guard = await session.lock("forced");
    await using kept = await session.lock("kept");
    await other.forceRelease("forced", guard.leaseId, guard.token);
    assert.equal(await guard.lost(), "released_elsewhere");
    assert.ok(session.held && kept.held);
    await using again = await session.tryLock("forced");
    assert.ok(again.token > guard.token);
  });

  test("work under a lock is told when the lock is lost", async () => {
    await using session = await client.session({ ttlMs: 6_000 });
    const guard = await session.lock("work");
    assert.equal(await guard.run(() => 7), 7);
    const work = guard.run((signal) => once(signal, "abort"));
    await other.forceRelease("work", guard.leaseId, guard.token);
    await assert.rejects(work, LockLostError);
    assert.equal(await session.withLock("work", (inner) => inner.token > guard.token), true);
  });

  test("bad input is refused with what is allowed", async () => {
    await assert.rejects(client.session({ ttlMs: 1_500 }), /whole seconds are needed, 1000 to 600000/);
    await assert.rejects(client.session({ ttlMs: 0 }), InvalidArgumentError);
    await using session = await client.session({ ttlMs: 10_000 });
    await assert.rejects(session.lock(""), InvalidArgumentError);
    await assert.rejects(session.lock("a//b"), { name: "InvalidArgumentError", reason: "INVALID_LOCK_NAME" });
    await assert.rejects(session.lock("x", { timeoutMs: -1 }), InvalidArgumentError);
    await assert.rejects(session.lock("x", { timeoutMs: Number.NaN }), InvalidArgumentError);
    await assert.rejects(session.lock("x", { mode: "both" as "shared" }), /"exclusive" or "shared"/);
    await assert.rejects(session.lock("x", { value: "v".repeat(5_000) }), { reason: "INVALID_VALUE" });
    assert.throws(() => new Client({ endpoints: "localhost:8080" }), /is no endpoint/);
    assert.throws(() => new Client({ endpoints: [] }), /no endpoint was given/);
    assert.throws(() => new Client({ cert: "only.pem" }), /cert and key belong together/);
    assert.throws(() => new Client({ tokenFile: "/nowhere/token" }), /cannot be read/);
  });

  test("what is there can be looked at", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using guard = await session.lock("looked/at");
    const { locks } = await client.locks("looked/");
    assert.deepEqual(locks.map((lock) => lock.name), ["looked/at"]);
    const lease = await client.lease(session.leaseId);
    assert.deepEqual(lease.grants.map((grant) => grant.token), [guard.token]);
    assert.equal((await client.checkToken("looked/at", guard.token)).current, true);
    assert.equal((await client.checkToken("looked/at", guard.token - 1n)).current, false);
    assert.equal((await client.status()).isLeader, true);
    assert.match(client.clusterId ?? "", /^[0-9a-f]{32}$/);
  });

  test("a client that is closed does nothing more", async () => {
    const closed = new Client({ endpoints: cluster.endpoints });
    const session = await closed.session({ ttlMs: 10_000 });
    const guard = await session.lock("of a closed client");
    await closed.close();
    assert.deepEqual([guard.held, session.held, guard.lossCause], [false, false, "closed"]);
    assert.equal((await client.get("of a closed client")).holderCount, 0);
    await assert.rejects(closed.status(), /the client is closed/);
    await assert.rejects(closed.session({ ttlMs: 10_000 }), /the client is closed/);
  });

  test("the address of the gRPC port will do", async () => {
    await using lost = new Client({ endpoints: cluster.nodes[0]?.grpc });
    assert.equal((await lost.status()).isLeader, true);
  });
});
