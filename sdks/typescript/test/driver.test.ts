/** The driver of the conformance suite, told by hand. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { nowNanos } from "../src/clock.js";
import { eventually, NODES, TestCluster } from "./cluster.js";
import { Driver } from "./driven.js";

test("the driver does what it is told", NODES, async () => {
  await using cluster = await TestCluster.start();
  const driver = new Driver();
  assert.deepEqual(await driver.event("ready"), { event: "ready", sdk: "typescript", version: "1.0.0-rc.1", protocol: 1 });
  const { endpoints } = cluster;
  assert.deepEqual((await driver.ask("client.new", { client: "c", endpoints, owner: "one" })).ok, {});
  assert.ok((await driver.ask("session.new", { client: "c", session: "s", ttl_seconds: 8 })).ok);
  assert.ok((await driver.ask("session.new", { client: "c", session: "t", ttl_seconds: 10 })).ok);
  await driver.ask("watch.new", { client: "c", watch: "w", prefix: "" });
  const { ok } = await driver.ask("lock.acquire", { session: "s", lock: "a", name: "x" });
  assert.match(String(ok?.["token"]), /^\d+$/);
  assert.equal((await driver.event("watch"))["type"], "ACQUIRED");
  assert.equal((await driver.ask("lock.held", { lock: "a" })).ok?.["held"], true);
  const refused = await driver.ask("lock.acquire", { session: "t", lock: "b", name: "x", wait_ms: 0 });
  assert.deepEqual([refused.error?.["kind"], refused.error?.["reason"]], ["held", "LOCK_HELD"]);
  const waiting = driver.send("lock.acquire", { session: "t", lock: "b", name: "x" });
  assert.deepEqual((await driver.ask("cancel", { target: waiting })).ok, { cancelled: true });
  assert.equal((await driver.answer(waiting)).error?.["kind"], "cancelled");
  assert.equal((await driver.ask("lock.held", { lock: "nothing" })).error?.["kind"], "driver");
  assert.equal((await driver.ask("nonsense")).error?.["kind"], "driver");
  await driver.ask("elect.new", { client: "c", elect: "e", name: "office", value: "v", ttl_seconds: 10 });
  await driver.event("elected");
  await driver.ask("elect.stop", { elect: "e" });

  await driver.ask("lock.probe", { lock: "a" });
  driver.signal("SIGSTOP");
  await eventually("the lease has run out", async () => {
    const answer = await fetch(`${endpoints[0] ?? ""}/v1/lock?name=x`);
    return ((await answer.json()) as { holderCount: number }).holderCount === 0 || undefined;
  });
  const wokenAt = nowNanos();
  driver.signal("SIGCONT");
  const probe = await driver.event("probe");
  const lost = await driver.event("lost");
  assert.ok(["expired", "gone"].includes(String(lost["cause"])));
  assert.ok(BigInt(String(probe["last_true_ns"])) < wokenAt, "it never believed anything after waking");
  assert.equal((await driver.ask("lock.check", { lock: "a" })).error?.["kind"], "lost");
  assert.equal(await driver.end(), 0);
});

/** 20 locks a round. */
const ROUNDS = Number(process.env["LOWKEY_PAUSE_ROUNDS"] ?? 2);
const LOCKS = 20;

test("a process that was stopped past its leases believes in nothing after waking", NODES, async (context) => {
  await using cluster = await TestCluster.start();
  const driver = new Driver();
  await driver.ask("client.new", { client: "c", endpoints: cluster.endpoints });
  const delays: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const names = Array.from({ length: LOCKS }, (_, number) => `pause/${round}/${number}`);
    await Promise.all(
      names.map(async (name) => {
        await driver.ask("session.new", { client: "c", session: name, ttl_seconds: 10 });
        assert.ok((await driver.ask("lock.acquire", { session: name, lock: name, name })).ok);
        await driver.ask("lock.probe", { lock: name });
      }),
    );
    driver.signal("SIGSTOP");
    await eventually("the leases have run out", async () => {
      const answer = await fetch(`${cluster.endpoints[0] ?? ""}/v1/locks?prefix=pause/`);
      return ((await answer.json()) as { locks: unknown[] }).locks.length === 0 || undefined;
    });
    const wokenAt = nowNanos();
    driver.signal("SIGCONT");
    for (const name of names) {
      const about = (event: string): Promise<Record<string, unknown>> =>
        eventually(`${event} of ${name}`, () => driver.lines.find((line) => line["event"] === event && line["lock"] === name));
      const lost = await about("lost");
      const probe = await about("probe");
      // It is absent if the process was stopped before the first question.
      assert.ok(BigInt((probe["last_true_ns"] as string | undefined) ?? 0) < wokenAt, "it was held after waking");
      delays.push(Number(BigInt(String(lost["at_ns"])) - wokenAt) / 1e6);
    }
  }
  delays.sort((one, other) => one - other);
  const at = (share: number): string => delays[Math.min(Math.floor(delays.length * share), delays.length - 1)]?.toFixed(1) ?? "";
  context.diagnostic(`${delays.length} losses signalled after waking: p50 ${at(0.5)} ms, p99 ${at(0.99)} ms, most ${at(1)} ms`);
  assert.equal(await driver.end(), 0);
});
