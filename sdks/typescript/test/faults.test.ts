/** What the SDK believes and does when the network, the nodes or the process fail. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client, LockHeldError, RefusedError, UnavailableError, WrongClusterError } from "../src/index.js";
import { eventually, NODES, TestCluster } from "./cluster.js";
import { Proxy, type SeenRequest } from "./proxy.js";

function isAcquire({ path }: SeenRequest): boolean {
  return path === "/v1/lock/acquire";
}

function isRenewal({ path }: SeenRequest): boolean {
  return path === "/v1/lease/renew";
}

describe("a network that fails", NODES, () => {
  let cluster: TestCluster;
  let direct: Client;

  before(async () => {
    cluster = await TestCluster.start();
    direct = new Client({ endpoints: cluster.endpoints });
  });

  after(async () => {
    await direct.close();
    await cluster[Symbol.asyncDispose]();
  });

  async function proxied(): Promise<{ proxy: Proxy; client: Client } & AsyncDisposable> {
    const proxy = await Proxy.start(() => cluster.endpoints[0] ?? "");
    const client = new Client({ endpoints: proxy.url, callTimeoutMs: 5_000 });
    const dispose = async (): Promise<void> => {
      proxy.fate = () => "pass";
      await client.close();
      await proxy[Symbol.asyncDispose]();
    };
    return { proxy, client, [Symbol.asyncDispose]: dispose };
  }

  test("an answer that was lost is asked for again with the same id, and nothing happens twice", async () => {
    await using both = await proxied();
    const { proxy, client } = both;
    await using session = await client.session({ ttlMs: 10_000 });
    let lost = 0;
    proxy.fate = (request) => (isAcquire(request) && ++lost <= 2 ? "lose-answer" : "pass");
    await using guard = await session.lock("lost answer");
    const ids = new Set(proxy.seen.filter(isAcquire).map(({ body }) => body["request_id"]));
    assert.deepEqual([lost, ids.size], [3, 1]);
    assert.deepEqual((await direct.lease(session.leaseId)).grants.map(({ token }) => token), [guard.token]);
  });

  test("a refusal after a lost answer leaves nothing behind", async () => {
    await using both = await proxied();
    const { proxy, client } = both;
    await using session = await client.session({ ttlMs: 10_000 });
    const refusal = { status: 409, body: { code: 9, reason: "ALREADY_HELD", message: "as if", details: [] } };
    let copies = 0;
    proxy.fate = (request) => (!isAcquire(request) ? "pass" : ++copies === 1 ? "lose-answer" : refusal);
    await assert.rejects(session.lock("in doubt"), { reason: "ALREADY_HELD" });
    await eventually("nothing is held", async () => (await direct.lease(session.leaseId)).grants.length === 0 || undefined);
    assert.ok(proxy.seen.some(({ body }) => body["acquire_request_id"] !== undefined), "it was released by its id");
  });

  test("a release that gets no answer goes on in the background", async () => {
    await using both = await proxied();
    const { proxy } = both;
    await using client = new Client({ endpoints: proxy.url, callTimeoutMs: 300 });
    await using session = await client.session({ ttlMs: 60_000 });
    const guard = await session.lock("slow release");
    proxy.fate = ({ path }) => (path === "/v1/lock/release" ? "lose-request" : "pass");
    await assert.rejects(guard.release(), UnavailableError);
    assert.equal(guard.held, false);
    assert.equal((await direct.get("slow release")).holderCount, 1);
    proxy.fate = () => "pass";
    await using again = await session.lock("slow release");
    assert.ok(again.token > guard.token, "the next caller waited for the release");
    const tokens = proxy.seen.filter(({ path }) => path === "/v1/lock/release").map(({ body }) => body["fencing_token"]);
    assert.deepEqual([...new Set(tokens)], [guard.token.toString()], "a release names its token");
  });

  test("a late answer to a renewal never revives a lost lock", async () => {
    await using both = await proxied();
    const { proxy, client } = both;
    await using session = await client.session({ ttlMs: 4_000 });
    const guard = await session.lock("late answer");
    let letGo: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (letGo = resolve));
    proxy.fate = (request) => (isRenewal(request) ? held : "pass");
    assert.equal(await guard.lost(), "expired");
    assert.ok(proxy.seen.some(isRenewal), "a renewal was under way");
    letGo();
    await direct.status();
    assert.ok(!guard.held && guard.remainingMs === 0 && !session.held && session.status === "lost");
    await assert.rejects(session.lock("more"), { name: "SessionLostError", lossCause: "expired" });
  });

  test("loss is signalled by the clock alone, while nobody answers", async (context) => {
    await using both = await proxied();
    const { proxy, client } = both;
    await using session = await client.session({ ttlMs: 4_000 });
    const guard = await session.lock("silence");
    proxy.fate = () => new Promise(() => undefined);
    const due = performance.now() + guard.remainingMs;
    assert.equal(await guard.lost(), "expired");
    // Renewals that were answered before the silence may have moved the end.
    const delay = performance.now() - due;
    context.diagnostic(`signalled ${delay.toFixed(1)} ms after the validity that was known at first`);
    assert.ok(session.signal.aborted && guard.signal.aborted && delay >= 0);
  });

  test("a blocked event loop never shows a lock as held after its validity", async () => {
    await using session = await direct.session({ ttlMs: 4_000 });
    const guard = await session.lock("blocked");
    assert.ok(guard.held);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 4_500);
    assert.equal(guard.held, false);
    assert.ok(guard.signal.aborted, "asking is enough to be told");
    assert.equal(guard.lossCause, "expired");
  });

  test("an old node that does not know holds is renewed without it, and a token is never left out", async () => {
    await using both = await proxied();
    const { proxy, client } = both;
    await using session = await client.session({ ttlMs: 4_000 });
    const unknown = (field: string): { status: number; body: unknown } => {
      const info = { "@type": "type.googleapis.com/google.rpc.ErrorInfo", reason: "UNKNOWN_FIELD", metadata: { field } };
      return { status: 400, body: { code: 3, reason: "UNKNOWN_FIELD", message: `no ${field}`, details: [info] } };
    };
    proxy.fate = ({ path, body }) => {
      if ("holds" in body) return unknown("holds");
      return path === "/v1/lock/release" ? unknown("fencing_token") : "pass";
    };
    const guard = await session.lock("old node");
    await eventually("renewals go on without it", () => proxy.seen.filter((request) => isRenewal(request) && !("holds" in request.body)).length > 3 || undefined);
    assert.ok(session.held);
    assert.equal(proxy.seen.filter(({ body }) => "holds" in body).length, 1);
    await assert.rejects(guard.release(), { reason: "UNKNOWN_FIELD" });
    assert.equal(proxy.seen.filter(({ path }) => path === "/v1/lock/release").length, 1);
  });

  test("a long wait is asked for again with the same id, and keeps its place", async () => {
    await using both = await proxied();
    const { proxy, client } = both;
    await using holder = await direct.session({ ttlMs: 60_000 });
    const guard = await holder.lock("long wait");
    await using session = await client.session({ ttlMs: 60_000 });
    const waiting = session.lock("long wait", { timeoutMs: 3_600_000 });
    await eventually("it was asked again", () => proxy.seen.filter(isAcquire).length >= 2 || undefined);
    const asked = proxy.seen.filter(isAcquire).map(({ body }) => body);
    assert.equal(new Set(asked.map((body) => body["request_id"])).size, 1);
    assert.ok(Number(asked[1]?.["wait_ms"]) < Number(asked[0]?.["wait_ms"]));
    assert.equal((await direct.get("long wait")).waiterCount, 1);
    proxy.cut();
    await guard.release();
    await using mine = await waiting;
    assert.ok(mine.held);
  });

  test("the token of a file goes along, and is read again when it changes", async () => {
    const folder = mkdtempSync(join(tmpdir(), "lowkey-token-"));
    try {
      const tokenFile = join(folder, "token");
      writeFileSync(tokenFile, "first\n");
      await using proxy = await Proxy.start(() => cluster.endpoints[0] ?? "");
      await using client = new Client({ endpoints: proxy.url, tokenFile });
      await client.status();
      assert.equal(proxy.seen.at(-1)?.headers.authorization, "Bearer first");
      const denied = { status: 401, body: { code: 16, reason: "UNAUTHENTICATED", message: "who are you?", details: [] } };
      proxy.fate = ({ headers }) => (headers.authorization === "Bearer second" ? "pass" : denied);
      await assert.rejects(client.status(), (error) => error instanceof RefusedError && error.reason === "UNAUTHENTICATED");
      writeFileSync(tokenFile, "second\n");
      await client.status();
      writeFileSync(tokenFile, "two words\n");
      assert.throws(() => new Client({ tokenFile }), /has no bearer token/);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test("an answer that is none is not believed", async () => {
    await using both = await proxied();
    const { proxy } = both;
    await using client = new Client({ endpoints: proxy.url, callTimeoutMs: 500 });
    proxy.clusterId = "0".repeat(32);
    proxy.fate = () => ({ status: 200, body: "nonsense" });
    await assert.rejects(client.session({ ttlMs: 10_000 }), { name: "UnavailableError", outcomeUnknown: true });
    proxy.fate = () => ({ status: 502, body: "a page" });
    await assert.rejects(client.status(), { retryable: true });
    await using nobody = new Client({ endpoints: "http://127.0.0.1:1", callTimeoutMs: 300 });
    await assert.rejects(nobody.session({ ttlMs: 10_000 }), { name: "UnavailableError", outcomeUnknown: false });
  });
});

describe("nodes that fail", NODES, () => {
  test("another cluster at the same address is refused", async () => {
    await using first = await TestCluster.start();
    await using second = await TestCluster.start();
    let target = first;
    await using proxy = await Proxy.start(() => target.endpoints[0] ?? "");
    await using client = new Client({ endpoints: proxy.url, callTimeoutMs: 2_000 });
    await using session = await client.session({ ttlMs: 60_000 });
    await using guard = await session.lock("here");
    target = second;
    await assert.rejects(session.lock("there", { timeoutMs: 1_000 }), WrongClusterError);
    assert.ok(guard.held, "belief is a matter of the clock");
    assert.equal((await new Client({ endpoints: second.endpoints }).locks()).locks.length, 0);
    const known = client.clusterId;
    await using wary = new Client({ endpoints: second.endpoints, clusterId: known });
    await assert.rejects(wary.status(), WrongClusterError);
    target = first;
    assert.equal((await client.get("here")).holderCount, 1);
  });

  test("locks outlive the leader, and a node that hangs", async () => {
    await using cluster = await TestCluster.start(3);
    await using client = new Client({ endpoints: cluster.endpoints });
    await using session = await client.session({ ttlMs: 5_000 });
    await using guard = await session.lock("outlives");
    const leader = await cluster.leader();
    await eventually("the leader is preferred", async () => {
      await client.status();
      return client.endpoint === leader.http || undefined;
    });
    await leader.kill();
    await using next = await session.lock("after the leader");
    assert.ok(next.token > guard.token);
    assert.ok(guard.held && session.held);
    leader.start();
    await eventually("it is back", async () => (await leader.status()) !== undefined || undefined);

    const hanging = await cluster.leader();
    hanging.signal("SIGSTOP");
    try {
      await using third = await session.lock("beside a node that hangs");
      assert.deepEqual([third.held, guard.held, session.held], [true, true, true]);
    } finally {
      hanging.signal("SIGCONT");
    }
    await using rival = await new Client({ endpoints: cluster.endpoints }).session({ ttlMs: 5_000 });
    await assert.rejects(rival.tryLock("outlives"), LockHeldError);
  });
});
