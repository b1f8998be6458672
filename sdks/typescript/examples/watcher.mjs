// Prints every change of the locks whose names begin with a prefix.
//
//   node examples/watcher.mjs jobs/ [COUNT]
//
// With a count it ends after so many changes.
import { Client } from "lowkey";

const [prefix = "", count = "Infinity"] = process.argv.slice(2);
const client = new Client();
// The state first, then everything that happens after it: nothing is missed in between.
const { locks, watchFrom } = await client.locks(prefix);
for (const { name, holders } of locks) console.log(`${name} is held by ${holders.map(({ owner }) => owner).join(", ")}`);
console.log("watching");

let seen = 0;
for await (const { type, name, owner, token, position } of client.watch({ prefix, from: watchFrom })) {
  console.log(`${position} ${type} ${name} ${owner} ${token.toString()}`);
  seen += 1;
  if (seen >= Number(count)) break;
}
await client.close();
