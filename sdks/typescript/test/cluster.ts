/** Real nodes for tests: processes of the binary that `LOWKEY_BIN` names. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The folder of this package. */
export const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));
/** The folder of the whole project. */
export const PROJECT = fileURLToPath(new URL("../../../../", import.meta.url));

const CANDIDATES = [process.env["LOWKEY_BIN"], join(PROJECT, "target/debug/lowkey"), join(PROJECT, "target/release/lowkey")];
const BINARY = CANDIDATES.find((path) => path !== undefined && existsSync(path));

/** For `test(name, NODES, …)`: skips with a clear word where there is no binary, or fails if all must be there. */
export const NODES = { skip: needs(BINARY, "no lowkey binary: set LOWKEY_BIN, or run cargo build -p lowkey-cli") };

/** False if the thing is there. Otherwise the word to skip with, or an error if all must be there. */
export function needs(thing: unknown, word: string): string | false {
  if (thing) return false;
  if (process.env["LOWKEY_REQUIRE_ALL"] === "1") throw new Error(`LOWKEY_REQUIRE_ALL=1 is set, and there is ${word}`);
  return `skipped: ${word}`;
}

/** A port that is free now. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Asks until the answer is good. A condition, not a time: the limit only ends a test that hangs. */
export async function eventually<T>(what: string, ask: () => Promise<T | undefined> | T | undefined, limitMs = 30_000): Promise<T> {
  const deadline = performance.now() + limitMs;
  for (;;) {
    const answer = await Promise.resolve(ask()).catch(() => undefined);
    if (answer !== undefined && answer !== false) return answer;
    if (performance.now() > deadline) throw new Error(`this did not come true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export class TestNode {
  readonly http: string;
  readonly grpc: string;
  readonly #arguments: string[];
  #process: ChildProcess | undefined;

  constructor(folder: string, name: string, ports: readonly [number, number, number], join_: string | undefined) {
    const [raft, grpc, http] = ports.map((port) => `127.0.0.1:${port}`) as [string, string, string];
    this.http = `http://${http}`;
    this.grpc = `http://${grpc}`;
    const founding = join_ === undefined ? ["--bootstrap"] : ["--join", join_];
    const addresses = ["--raft-addr", raft, "--grpc-addr", grpc, "--http-addr", http];
    this.#arguments = ["server", ...founding, "--node-id", name, "--data-dir", join(folder, name), ...addresses];
  }

  get grpcAddress(): string {
    return this.grpc.replace("http://", "");
  }

  start(): void {
    this.#process = spawn(BINARY ?? "", [...this.#arguments, "--log", "warn"], { stdio: "ignore" });
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child?.exitCode !== null || child.signalCode !== null) return;
    const isOver = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGCONT");
    child.kill("SIGKILL");
    await isOver;
  }

  async status(): Promise<{ isLeader: boolean; nodeId: string; members: { voter: boolean }[] } | undefined> {
    const answer = await fetch(`${this.http}/v1/status`, { signal: AbortSignal.timeout(1_000) });
    return (await answer.json()) as { isLeader: boolean; nodeId: string; members: { voter: boolean }[] };
  }
}

export class TestCluster implements AsyncDisposable {
  readonly nodes: TestNode[] = [];
  readonly #folder = mkdtempSync(join(tmpdir(), "lowkey-ts-"));

  /** Starts a cluster, and waits until all of its nodes vote. */
  static async start(size = 1): Promise<TestCluster> {
    const cluster = new TestCluster();
    for (let number = 1; number <= size; number += 1) {
      const ports = [await freePort(), await freePort(), await freePort()] as const;
      const first = cluster.nodes[0]?.grpcAddress;
      const node = new TestNode(cluster.#folder, `node-${number}`, ports, first);
      cluster.nodes.push(node);
      node.start();
      await eventually(`node-${number} is ready`, async () => {
        const answer = await fetch(`${node.http}/readyz`);
        return answer.ok || undefined;
      });
    }
    await eventually("all nodes vote", async () => {
      const status = await (await cluster.leader()).status();
      return status?.members.filter((member) => member.voter).length === size || undefined;
    });
    return cluster;
  }

  get endpoints(): string[] {
    return this.nodes.map((node) => node.http);
  }

  leader(): Promise<TestNode> {
    return eventually("a node leads", async () => {
      const found = await Promise.all(
        this.nodes.map(async (node) => ((await node.status().catch(() => undefined))?.isLeader ? node : undefined)),
      );
      return found.find((node) => node !== undefined);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.kill()));
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
