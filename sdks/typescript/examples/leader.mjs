// One of several processes leads. Start it several times, and stop the leader with Ctrl-C.
//
//   node examples/leader.mjs scheduler http://10.0.0.1:4000 [BEATS]
//
// With a number of beats it resigns after so many; otherwise it leads until it is stopped or loses the lead.
import { setTimeout as pause } from "node:timers/promises";
import { Client } from "lowkey";

const [election = "scheduler", value = `process ${process.pid}`, beats = "Infinity"] = process.argv.slice(2);
const client = new Client();
const stop = new AbortController();
process.once("SIGINT", () => {
  stop.abort();
});

try {
  await client.elect(election, { value, ttlMs: 5_000, signal: stop.signal }, async (lead) => {
    console.log(`leading ${election} with token ${lead.token.toString()}`);
    for (let beat = 1; beat <= Number(beats) && lead.held; beat += 1) {
      // Everything that only the leader may do carries the token.
      console.log(`beat ${beat} with token ${lead.token.toString()}`);
      await pause(200, undefined, { signal: lead.signal });
    }
    console.log(lead.held ? "resigning" : "the lead is lost");
  });
} catch (error) {
  if (!stop.signal.aborted) throw error;
  console.log("stopped");
} finally {
  await client.close();
}
