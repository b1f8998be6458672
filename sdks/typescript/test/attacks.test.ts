/** Many at once: acquires that are given up while leaders die, and a thousand sessions in one process. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Client, type LockGuard } from "../src/index.js";
import { eventually, NODES, TestCluster } from "./cluster.js";

const CANCELLED = Number(process.env["LOWKEY_CANCELLED"] ?? 1_200);
const SESSIONS = Number(process.env["LOWKEY_SESSIONS"] ?? 1_000);

test("acquires that are given up while the leader is killed leave no lock behind", NODES, async (context) => {
  await using cluster = await TestCluster.start(3);
  await using client = new Client({ endpoints: cluster.endpoints, callTimeoutMs: 30_000 });
  await using session = await client.session({ ttlMs: 30_000 });
  let granted = 0;
  let given = 0;
  const one = async (number: number): Promise<void> => {
    const controller = new AbortController();
    const acquire = session.lock(`attack/${number % 400}`, { signal: controller.signal });
    await pause(Math.random() * 500);
    controller.abort();
    await acquire.then(
      async (guard: LockGuard) => {
        granted += 1;
        await guard[Symbol.asyncDispose]();
      },
      () => (given += 1),
    );
  };
  let kills = 0;
  for (let done = 0; done < CANCELLED; done += 200) {
    const batch = Promise.all(Array.from({ length: Math.min(200, CANCELLED - done) }, (_, number) => one(done + number)));
    if (done % 400 === 0) {
      const leader = await cluster.leader();
      await leader.kill();
      kills += 1;
      leader.start();
      await eventually("it is back", async () => (await leader.status()) !== undefined || undefined);
    }
    await batch;
  }
  assert.equal(granted + given, CANCELLED);
  await eventually("nothing is left", async () => {
    const { grants, waitsFor } = await client.lease(session.leaseId);
    return grants.length + waitsFor.length === 0 || undefined;
  });
  assert.ok(session.held, "the session lives on");
  context.diagnostic(`${CANCELLED} acquires, ${given} given up, ${granted} granted first, ${kills} leaders killed`);
});

test("a thousand sessions in one process are renewed in time, over few connections", NODES, async (context) => {
  await using cluster = await TestCluster.start();
  const memory = process.memoryUsage().rss;
  await using client = new Client({ endpoints: cluster.endpoints, callTimeoutMs: 60_000 });
  const sessions = await Promise.all(Array.from({ length: SESSIONS }, () => client.session({ ttlMs: 30_000 })));
  const cpu = process.cpuUsage();
  const from = performance.now();
  let least = Number.POSITIVE_INFINITY;
  // Two renewals of each, and no session is lost, also on a busy machine.
  while (performance.now() - from < 25_000) {
    await pause(100);
    for (const session of sessions) least = Math.min(least, session.remainingMs);
  }
  const used = process.cpuUsage(cpu);
  const seconds = (performance.now() - from) / 1000;
  const share = ((used.user + used.system) / 1e6 / seconds) * 100;
  const grown = (process.memoryUsage().rss - memory) / 2 ** 20;
  context.diagnostic(
    `${SESSIONS} sessions: ${share.toFixed(1)} % of a processor, ${grown.toFixed(0)} MiB more, ` +
      `never less than ${least.toFixed(0)} of 27000 ms left`,
  );
  assert.equal(sessions.filter((session) => !session.held).length, 0);
  await Promise.all(sessions.map((session) => session.close()));
});
