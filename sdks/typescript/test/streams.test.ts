/** Watches and elections against real nodes. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, describe, test } from "node:test";
import { Client, type Leadership, type WatchEvent } from "../src/index.js";
import { eventually, NODES, TestCluster } from "./cluster.js";
import { Proxy } from "./proxy.js";

describe("watches and elections", NODES, () => {
  let cluster: TestCluster;
  let client: Client;

  before(async () => {
    cluster = await TestCluster.start();
    client = new Client({ endpoints: cluster.endpoints, owner: "one" });
  });

  after(async () => {
    await client.close();
    await cluster[Symbol.asyncDispose]();
  });

  async function take(events: AsyncIterator<WatchEvent>, count: number): Promise<WatchEvent[]> {
    const taken: WatchEvent[] = [];
    while (taken.length < count) {
      const next = await events.next();
      assert.ok(next.done !== true, "the watch ended");
      taken.push(next.value);
    }
    return taken;
  }

  test("a watch tells every change in order, and goes on after broken connections without gaps or repeats", async () => {
    await using proxy = await Proxy.start(() => cluster.endpoints[0] ?? "");
    await using watcher = new Client({ endpoints: proxy.url });
    await using watch = watcher.watch({ prefix: "watched/" });
    await watch.begun;
    await using session = await client.session({ ttlMs: 10_000 });
    const expected: string[] = [];
    for (let round = 0; round < 10; round += 1) {
      const guard = await session.lock(`watched/${round}`, { value: "größe" });
      if (round % 3 === 0) proxy.cut();
      await guard.release();
      expected.push(`ACQUIRED watched/${round} ${guard.token.toString()}`, `RELEASED watched/${round} ${guard.token.toString()}`);
    }
    const events = await take(watch, 20);
    assert.deepEqual(events.map(({ type, name, token }) => `${type} ${name} ${token.toString()}`), expected);
    assert.equal(events[0]?.value, "größe");
    const half = events[9]?.position;
    await using later = client.watch({ prefix: "watched/", after: half });
    assert.deepEqual((await take(later, 10)).map(({ position }) => position), events.slice(10).map(({ position }) => position));
  });

  test("a list says where to watch from", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using first = await session.lock("listed/first");
    const { locks, watchFrom } = await client.locks("listed/");
    assert.deepEqual(locks.map(({ holders }) => holders[0]?.token), [first.token]);
    await using second = await session.lock("listed/second");
    await using watch = client.watch({ prefix: "listed/", from: watchFrom });
    const [event] = await take(watch, 1);
    assert.deepEqual([event?.type, event?.token], ["ACQUIRED", second.token]);
  });

  test("a watch ends with its signal, with its loop, and with an error that another node would not mend", async () => {
    const controller = new AbortController();
    const watch = client.watch({ name: "ended", signal: controller.signal });
    await watch.begun;
    controller.abort();
    for await (const event of watch) assert.fail(`no event was expected: ${event.type}`);
    await using session = await client.session({ ttlMs: 10_000 });
    const loop = client.watch({ name: "loop" });
    await loop.begun;
    await using guard = await session.lock("loop");
    for await (const { token } of loop) {
      assert.equal(token, guard.token);
      break;
    }
    assert.deepEqual(await loop.next(), { done: true, value: undefined });
    await assert.rejects(client.watch({ from: 10n ** 15n }).next(), { reason: "INVALID_FROM" });
    assert.throws(() => client.watch({ name: "a", prefix: "b" }), /not both/);
  });

  test("an election is campaigned for again after the lead was lost, over a new session", async () => {
    await using observer = client.observe("office");
    assert.deepEqual((await observer.next()).value?.type, "VACANT");
    const terms: Leadership[] = [];
    const controller = new AbortController();
    const options = { value: "http://10.0.0.1:4000", ttlMs: 2_000, signal: controller.signal };
    const campaign = client.elect("office", options, async (lead) => {
      terms.push(lead);
      await once(lead.signal, "abort");
      throw new Error("what the work throws after the loss does not count");
    });
    const first = (await observer.next()).value?.leader;
    assert.deepEqual([first?.owner, first?.value], ["one", "http://10.0.0.1:4000"]);
    const former = await eventually("there is a first term", () => terms[0]);
    await former.proclaim("http://10.0.0.1:4001");
    assert.equal((await observer.next()).value?.leader?.value, "http://10.0.0.1:4001");
    await client.revokeLease(former.leaseId, "one");
    const present = await eventually("there is a second term", () => terms[1]);
    assert.equal(former.lossCause, "gone");
    assert.notEqual(present.leaseId, former.leaseId);
    assert.ok(present.token > former.token);
    assert.equal((await client.leader("office")).leader?.token, present.token);
    controller.abort(new Error("stopped"));
    await assert.rejects(campaign, /stopped/);
    assert.equal((await client.leader("office")).leader, undefined, "it has resigned");
  });

  test("an election ends with its work", async () => {
    assert.equal(await client.elect("short", {}, (lead) => lead.token > 0n), true);
    await assert.rejects(client.elect("short", {}, () => Promise.reject(new Error("the work failed"))), /the work failed/);
    await assert.rejects(client.elect("short", { ttlMs: 1 }, () => 1), /whole seconds/);
    assert.equal((await client.leader("short")).leader, undefined);
  });
});
