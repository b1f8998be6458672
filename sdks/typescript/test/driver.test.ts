/** The driver of the conformance suite, told by hand. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { nowNanos } from "../src/clock.js";
import { eventually, NODES, PACKAGE, TestCluster } from "./cluster.js";

type Line = Record<string, unknown> & { ok?: Record<string, unknown>; error?: Record<string, unknown> };

class Driver {
  readonly #child = spawn(join(PACKAGE, "conformance-driver"), { stdio: ["pipe", "pipe", "inherit"] });
  readonly lines: Line[] = [];
  #last = 0;

  constructor() {
    createInterface({ input: this.#child.stdout }).on("line", (line) => this.lines.push(JSON.parse(line) as Line));
  }

  send(op: string, fields: Record<string, unknown> = {}): number {
    this.#last += 1;
    this.#child.stdin.write(`${JSON.stringify({ id: this.#last, op, ...fields })}\n`);
    return this.#last;
  }

  answer(id: number): Promise<Line> {
    return eventually(`an answer to ${id}`, () => this.lines.find((line) => line["id"] === id));
  }

  async ask(op: string, fields: Record<string, unknown> = {}): Promise<Line> {
    return this.answer(this.send(op, fields));
  }

  event(name: string): Promise<Line> {
    return eventually(`the event ${name}`, () => this.lines.find((line) => line["event"] === name));
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async end(): Promise<number> {
    const over = once(this.#child, "exit");
    this.#child.stdin.end();
    return ((await over) as [number])[0];
  }
}

test("the driver does what it is told", NODES, async () => {
  await using cluster = await TestCluster.start();
  const driver = new Driver();
  assert.deepEqual(await driver.event("ready"), { event: "ready", sdk: "typescript", version: "0.1.0", protocol: 1 });
  const { endpoints } = cluster;
  assert.deepEqual((await driver.ask("client.new", { client: "c", endpoints, owner: "one" })).ok, {});
  assert.ok((await driver.ask("session.new", { client: "c", session: "s", ttl_seconds: 2 })).ok);
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
