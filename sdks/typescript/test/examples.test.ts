/** The examples do what they say, against a real node. */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client } from "../src/index.js";
import { eventually, NODES, PACKAGE, TestCluster } from "./cluster.js";

class Example {
  readonly #child: ChildProcess;
  readonly #over: Promise<unknown[]>;
  output = "";

  constructor(endpoints: string[], name: string, ...args: string[]) {
    const env = { ...process.env, LOWKEY_ENDPOINTS: endpoints.join(",") };
    const file = join(PACKAGE, "examples", `${name}.mjs`);
    this.#child = spawn(process.execPath, [file, ...args], { env, stdio: ["ignore", "pipe", "inherit"] });
    this.#child.stdout?.on("data", (chunk: Buffer) => (this.output += chunk.toString()));
    this.#over = once(this.#child, "close");
  }

  async says(text: string): Promise<void> {
    await eventually(`the example says "${text}"`, () => this.output.includes(text) || undefined);
  }

  stop(): void {
    this.#child.kill("SIGINT");
  }

  async end(): Promise<number> {
    return ((await this.#over) as [number])[0];
  }
}

describe("examples", NODES, () => {
  let cluster: TestCluster;
  let client: Client;

  before(async () => {
    cluster = await TestCluster.start();
    client = new Client({ endpoints: cluster.endpoints, owner: "the test" });
  });

  after(async () => {
    await client.close();
    await cluster[Symbol.asyncDispose]();
  });

  test("the singleton job runs once", async () => {
    {
      await using session = await client.session({ ttlMs: 10_000 });
      await using guard = await session.lock("nightly");
      assert.ok(guard.held);
      const other = new Example(cluster.endpoints, "singleton-job", "nightly");
      assert.equal(await other.end(), 75);
      assert.equal(other.output, "not here: the test runs it\n");
    }
    const job = new Example(cluster.endpoints, "singleton-job", "nightly");
    assert.equal(await job.end(), 0);
    assert.match(job.output, /^running nightly with token \d+\ncollect: done\nreport: done\nsend: done\n$/);
    assert.equal((await client.get("nightly")).holderCount, 0);
  });

  test("one leads after the other", async () => {
    const first = new Example(cluster.endpoints, "leader", "scheduler", "http://one");
    await first.says("beat 2");
    assert.equal((await client.leader("scheduler")).leader?.value, "http://one");
    const second = new Example(cluster.endpoints, "leader", "scheduler", "http://two", "2");
    await eventually("the second one stands", async () => (await client.leader("scheduler")).candidates === 1 || undefined);
    first.stop();
    assert.equal(await first.end(), 0);
    assert.ok(first.output.endsWith("stopped\n"));
    assert.equal(await second.end(), 0);
    assert.ok(second.output.includes("beat 2") && second.output.endsWith("resigning\n"), second.output);
  });

  test("the late write is refused", async () => {
    const writer = new Example(cluster.endpoints, "fenced-writer");
    assert.equal(await writer.end(), 0);
    assert.match(writer.output, /believes that it holds the lock: true\nrefused: token \d+ is stale: \d+ was here\nthe report is "the second draft"\n$/);
  });

  test("the watcher prints what is there, and what happens", async () => {
    await using session = await client.session({ ttlMs: 10_000 });
    await using before = await session.lock("jobs/before");
    const watcher = new Example(cluster.endpoints, "watcher", "jobs/", "2");
    await watcher.says("watching");
    const guard = await session.lock("jobs/next");
    await guard.release();
    assert.equal(await watcher.end(), 0);
    assert.ok(before.held && watcher.output.startsWith("jobs/before is held by the test\nwatching\n"));
    assert.match(watcher.output, /ACQUIRED jobs\/next the test \d+\n\d+\.\d+ RELEASED jobs\/next the test \d+\n$/);
  });

  test("a program that forgets to close ends all the same", async () => {
    const code = `
      import { Client } from "lowkey";
      const session = await new Client().session({ ttlMs: 600_000 });
      const guard = await session.lock("forgotten");
      console.log(guard.held);`;
    const env = { ...process.env, LOWKEY_ENDPOINTS: cluster.endpoints.join(",") };
    const child = spawn(process.execPath, ["--input-type=module", "-e", code], { env, cwd: PACKAGE, stdio: "inherit" });
    assert.deepEqual(await once(child, "exit"), [0, null]);
  });
});
