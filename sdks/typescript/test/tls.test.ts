/** TLS with an own authority and client certificates, before a real node. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Client, UnavailableError } from "../src/index.js";
import { NODES, needs, TestCluster } from "./cluster.js";
import { Proxy } from "./proxy.js";

function hasOpenssl(): boolean {
  try {
    execFileSync("openssl", ["version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

const skip = NODES.skip || needs(hasOpenssl(), "no openssl to make certificates with");

describe("TLS", { skip }, () => {
  let folder: string;
  let cluster: TestCluster;

  function file(name: string): string {
    return join(folder, name);
  }

  /** An authority, a node and a client that it vouches for. */
  function authority(name: string): void {
    const openssl = (...args: string[]): unknown => execFileSync("openssl", args, { stdio: "ignore", cwd: folder });
    const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    openssl("req", "-x509", ...key, "-subj", `/CN=${name}`, "-keyout", `${name}.key`, "-out", `${name}.pem`, "-days", "2");
    for (const who of ["node", "client"]) {
      const both = `${name}-${who}`;
      openssl("req", ...key, "-subj", `/CN=${who}`, "-keyout", `${both}.key`, "-out", `${both}.csr`);
      writeFileSync(file(`${both}.ext`), "subjectAltName=IP:127.0.0.1\n");
      const signing = ["-CA", `${name}.pem`, "-CAkey", `${name}.key`, "-CAcreateserial", "-days", "2"];
      openssl("x509", "-req", "-in", `${both}.csr`, ...signing, "-extfile", `${both}.ext`, "-out", `${both}.pem`);
    }
  }

  function nodeTls(name: string): { ca: Buffer; cert: Buffer; key: Buffer; requestCert: true; rejectUnauthorized: true } {
    const read = (end: string): Buffer => readFileSync(file(end));
    const cert = { cert: read(`${name}-node.pem`), key: read(`${name}-node.key`) };
    return { ca: read(`${name}.pem`), ...cert, requestCert: true, rejectUnauthorized: true };
  }

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "lowkey-tls-"));
    authority("first");
    authority("second");
    cluster = await TestCluster.start();
  });

  after(async () => {
    await cluster[Symbol.asyncDispose]();
    rmSync(folder, { recursive: true });
  });

  test("locks, waits and watches work over TLS, and new certificates are taken up without a restart", async () => {
    await using proxy = await Proxy.start(() => cluster.endpoints[0] ?? "", nodeTls("first"));
    const files = { ca: file("ca.pem"), cert: file("client.pem"), key: file("client.key") };
    const install = (name: string): void => {
      copyFileSync(file(`${name}.pem`), files.ca);
      copyFileSync(file(`${name}-client.pem`), files.cert);
      copyFileSync(file(`${name}-client.key`), files.key);
    };
    install("first");
    await using client = new Client({ endpoints: proxy.url, ...files });
    await using watch = client.watch({ name: "tls" });
    await watch.begun;
    await using session = await client.session({ ttlMs: 60_000 });
    await using guard = await session.lock("tls", { timeoutMs: 5_000 });
    assert.equal((await watch.next()).value?.token, guard.token);

    install("second");
    proxy.setTls(nodeTls("second"));
    proxy.cut();
    await using next = await session.lock("after the change");
    assert.ok(next.token > guard.token);
    assert.ok(guard.held);
  });

  test("who is not vouched for is refused, on both sides", async () => {
    await using proxy = await Proxy.start(() => cluster.endpoints[0] ?? "", nodeTls("first"));
    const callTimeoutMs = 300;
    await using stranger = new Client({ endpoints: proxy.url, ca: file("first.pem"), callTimeoutMs });
    await assert.rejects(stranger.status(), UnavailableError);
    const cert = { cert: file("first-client.pem"), key: file("first-client.key") };
    await using wary = new Client({ endpoints: proxy.url, ca: file("second.pem"), ...cert, callTimeoutMs });
    await assert.rejects(wary.status(), (error) => error instanceof UnavailableError && !error.outcomeUnknown);
    await using plain = new Client({ endpoints: proxy.url.replace("https", "http"), callTimeoutMs });
    await assert.rejects(plain.status(), { retryable: true });
    assert.deepEqual(proxy.seen, []);
  });
});
