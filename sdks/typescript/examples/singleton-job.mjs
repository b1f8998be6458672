// A job that runs once, however many machines start it.
//
//   node examples/singleton-job.mjs nightly
//
// Exit status 75 if another machine has it, 76 if the lock was lost while it ran.
import { setTimeout as pause } from "node:timers/promises";
import { Client, LockHeldError, LockLostError } from "lowkey";

const name = process.argv[2] ?? "nightly";
const client = new Client();
const session = await client.session({ ttlMs: 10_000 });
try {
  const guard = await session.tryLock(name);
  console.log(`running ${name} with token ${guard.token.toString()}`);
  await guard.run(async (signal) => {
    for (const step of ["collect", "report", "send"]) {
      // Before each step that matters: may I still act?
      guard.check();
      await pause(100, undefined, { signal });
      console.log(`${step}: done`);
    }
  });
  await guard.release();
} catch (error) {
  if (error instanceof LockHeldError) {
    console.log(`not here: ${error.heldBy?.owner ?? "somebody"} runs it`);
    process.exitCode = 75;
  } else if (error instanceof LockLostError) {
    console.log(`stopped: ${error.message}`);
    process.exitCode = 76;
  } else {
    throw error;
  }
} finally {
  await client.close();
}
