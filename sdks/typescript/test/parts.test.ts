/** Small parts on their own: the clock, server-sent events, doors. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Clock, nowNanos, procUptime } from "../src/clock.js";
import { Doors, type Entry, type Turn } from "../src/door.js";
import { Lane } from "../src/lane.js";
import { EventParser } from "../src/sse.js";

const SECOND = 1_000_000_000n;
const TICK = 10_000_000n;

describe("the clock", () => {
  test("it counts the time in suspend, and never too little of it", () => {
    let monotonic = 5n * SECOND;
    let boot = 5n * SECOND + 7_000_000n;
    const clock = new Clock(() => monotonic, () => (boot / TICK) * TICK);
    const before = clock.now();
    monotonic += SECOND;
    boot += SECOND;
    assert.equal(clock.now() - before, SECOND);
    // Suspended for a minute: only the uptime goes on.
    boot += 60n * SECOND;
    const slept = clock.now() - before - SECOND;
    assert.ok(slept >= 60n * SECOND && slept <= 60n * SECOND + 2n * TICK, `${slept.toString()} ns`);
    const after = clock.now();
    assert.equal(clock.now(), after);
    monotonic += SECOND;
    boot += SECOND;
    assert.equal(clock.now() - after, SECOND);
  });

  test("steps of the uptime are no suspend", () => {
    let now = 0n;
    const clock = new Clock(() => now, () => (now / TICK) * TICK);
    for (; now < SECOND; now += 1_234_567n) assert.equal(clock.now(), now);
  });

  test("it works without an uptime, and with that of a container", () => {
    const noUptime = new Clock(() => 7n, () => undefined);
    assert.equal(noUptime.now(), 7n);
    assert.equal(procUptime("/nowhere/uptime")(), undefined);
    let suspended = 0n;
    const container = new Clock(() => 100n * SECOND, () => 3n * SECOND + suspended);
    const before = container.now();
    suspended = 10n * SECOND;
    assert.ok(container.now() - before >= 10n * SECOND);
  });

  test("the real one goes on", async () => {
    const before = nowNanos();
    await new Promise((resolve) => setTimeout(resolve, 20));
    assert.ok(nowNanos() - before >= 19_000_000n);
  });
});

describe("server-sent events", () => {
  test("pieces may end anywhere", () => {
    const bytes = new TextEncoder().encode('id: 12.0\ndata: {"name":"größe"}\n\nevent: heartbeat\r\nid: 15\r\ndata: {}\r\n\r\n: a comment\n\n');
    for (let size = 1; size < bytes.length; size += 1) {
      const parser = new EventParser();
      const events = [];
      for (let at = 0; at < bytes.length; at += size) events.push(...parser.push(bytes.subarray(at, at + size)));
      assert.deepEqual(events, [
        { type: "message", id: "12.0", data: '{"name":"größe"}' },
        { type: "heartbeat", id: "15", data: "{}" },
      ]);
    }
  });

  test("a line without end is not collected for ever", () => {
    const parser = new EventParser();
    assert.throws(() => {
      for (let chunk = 0; chunk < 100; chunk += 1) parser.push(new Uint8Array(65_536).fill(97));
    }, /too long/);
  });
});

describe("doors", () => {
  const ALONE = { mode: "exclusive", scope: "name" } as const;
  const TOGETHER = { mode: "shared", scope: "name" } as const;
  const forever = new AbortController().signal;

  function turn(entry: Entry<number> | undefined): Turn<number> {
    assert.ok(entry?.kind === "turn");
    return entry.turn;
  }

  test("one goes in after the other, and those who left are passed over", async () => {
    const doors = new Doors<number>();
    const first = turn(await doors.enter("x", ALONE, false, forever));
    const controller = new AbortController();
    const gone = doors.enter("x", ALONE, false, controller.signal);
    const second = doors.enter("x", ALONE, false, forever);
    controller.abort();
    assert.equal(await gone, undefined);
    first.held(ALONE, 1);
    first.end();
    first.end();
    turn(await second).end();
    assert.ok(doors.tryEnter("x"), "nothing is left of it");
  });

  test("those who share get the same, unless somebody in line would starve", async () => {
    const doors = new Doors<number>();
    const first = turn(await doors.enter("x", TOGETHER, false, forever));
    const second = doors.enter("x", TOGETHER, false, forever);
    first.held(TOGETHER, 7);
    assert.deepEqual(await second, { kind: "share", grant: 7 });
    assert.deepEqual(await doors.enter("x", { ...TOGETHER, scope: "subtree" }, true, forever), { kind: "busy", grant: 7 });
    const writer = doors.enter("x", ALONE, false, forever);
    assert.deepEqual(await doors.enter("x", TOGETHER, true, forever), { kind: "busy", grant: 7 });
    first.end();
    turn(await writer).end();
  });

  test("who is brief waits for what is decided soon, and for nothing else", async () => {
    const doors = new Doors<number>();
    const first = turn(await doors.enter("x", ALONE, true, forever));
    const brief = doors.enter("x", ALONE, true, forever);
    first.held(ALONE, 1);
    assert.deepEqual(await brief, { kind: "busy", grant: 1 });
    first.leaving();
    const next = doors.enter("x", ALONE, true, forever);
    first.end();
    const second = turn(await next);
    second.leaving();
    const patient = doors.enter("x", ALONE, false, forever);
    const late = doors.enter("x", ALONE, true, forever);
    second.end();
    turn(await patient);
    assert.deepEqual(await late, { kind: "busy", grant: undefined });
  });
});

test("a lane never lets in more than it may", async () => {
  const lane = new Lane(3);
  let inside = 0;
  let most = 0;
  const work = async (): Promise<void> => {
    inside += 1;
    most = Math.max(most, inside);
    await new Promise((resolve) => setImmediate(resolve));
    inside -= 1;
  };
  await Promise.all(Array.from({ length: 50 }, () => lane.run(work)));
  assert.deepEqual([most, inside], [3, 0]);
  await assert.rejects(lane.run(() => Promise.reject(new Error("it failed"))), /it failed/);
  await lane.run(work);

  const narrow = new Lane(1);
  const controller = new AbortController();
  let free: () => void = () => undefined;
  const first = narrow.run(() => new Promise<void>((resolve) => (free = resolve)));
  const gone = narrow.run(work, controller.signal);
  const last = narrow.run(work);
  controller.abort(new Error("no longer wanted"));
  await assert.rejects(gone, /no longer wanted/);
  free();
  await Promise.all([first, last]);
});
