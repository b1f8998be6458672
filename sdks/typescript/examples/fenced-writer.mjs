// A resource that refuses late writes: what the fencing token is for.
//
//   node examples/fenced-writer.mjs
//
// The first writer loses its lock without knowing, as a process does that was paused for too long. The second one
// writes. When the first goes on, its write comes too late, and the resource refuses it. In PostgreSQL the same is
// one line: see `fenced` in lowkey/fence.
import { Client } from "lowkey";

/** A resource remembers the highest token that it has seen, and compares in the same step in which it writes. */
class Report {
  #highest = 0n;
  text = "";

  /** @param {bigint} token @param {string} text */
  write(token, text) {
    if (token < this.#highest) {
      throw new Error(`token ${token.toString()} is stale: ${this.#highest.toString()} was here`);
    }
    this.#highest = token;
    this.text = text;
  }
}

const report = new Report();
const client = new Client();
const first = await (await client.session({ ttlMs: 10_000 })).lock("report");
report.write(first.token, "the first draft");

// Somebody forces the lock open, and the first writer has not heard of it yet.
await client.forceRelease("report", first.leaseId, first.token);
const second = await (await client.session({ ttlMs: 10_000 })).lock("report");
report.write(second.token, "the second draft");
console.log(`the first writer believes that it holds the lock: ${first.held}`);

try {
  report.write(first.token, "a late write");
} catch (error) {
  console.log(`refused: ${error instanceof Error ? error.message : String(error)}`);
}
console.log(`the report is "${report.text}"`);
await client.close();
