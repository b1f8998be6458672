// How the cluster is: asked for again and again, with the numbers of the last minute.
//
// What was not answered is told as such. A number that is older than the last attempt is never shown as if it
// were of now: listeners get `connection`, and the page marks all that it shows as old.

import { get, pause } from "./api.js";

const INTERVAL_MS = 500;
/** A rate is of at least this long. */
const WINDOW_MS = 950;
const SAMPLES = 120;

export const cluster = {
  /** The last good answer; nothing before the first. */
  status: null,
  /** When that was. */
  at: 0,
  /** Why there is no newer one. */
  error: null,
  /** Since when there is none. */
  lostAt: 0,
  /** By name: when each node last answered. */
  contact: new Map(),
  /** The last minute or so, oldest first. */
  samples: [],
};

const listeners = new Set();
let reports = [];

/** Calls back at every answer and every failure, and once now. Returns how to stop. */
export function follow(listener) {
  listeners.add(listener);
  if (cluster.status || cluster.error) listener();
  return () => listeners.delete(listener);
}

const tell = () => listeners.forEach((listener) => listener());

/** Asks for ever; not while nobody looks. */
export async function run() {
  for (;;) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
      continue;
    }
    await ask();
    tell();
    await pause(INTERVAL_MS);
  }
}

/** Asks once, now. */
export async function ask() {
  try {
    const status = await get("/v1/cluster/status");
    Object.assign(cluster, { status, at: Date.now(), error: null, lostAt: 0 });
    for (const node of status.nodes) if (!node.problem) cluster.contact.set(node.member.nodeId, cluster.at);
    sample(status);
  } catch (error) {
    cluster.error = error;
    cluster.lostAt ||= Date.now();
    // Who may not see it does not go on seeing what was there before.
    if (error.status === 401 || error.isRefusal) cluster.status = null;
  }
}

/** Compares with the reports of a moment ago. */
function sample(status) {
  const now = performance.now();
  const counters = new Map(status.nodes.filter((node) => node.counters).map((node) => [node.member.nodeId, node.counters]));
  reports.push({ now, counters });
  while (reports.length > 2 && now - reports[1].now >= WINDOW_MS) reports.shift();
  const before = reports[0];
  if (now - before.now < WINDOW_MS) return;
  const sum = { grants: 0, renewals: 0, failed: 0, durations: [] };
  for (const [node, counted] of counters) {
    const earlier = before.counters.get(node);
    const ms = Number(counted.upMs) - Number(earlier?.upMs);
    // A node that has begun anew meanwhile counts from its next report.
    if (!(ms > 0)) continue;
    const per = (field) => ((Number(counted[field]) - Number(earlier[field])) * 1000) / ms;
    sum.grants += per("grants");
    sum.renewals += per("renewals");
    sum.failed += per("callsFailed");
    counted.durations.forEach((calls, at) => {
      sum.durations[at] = (sum.durations[at] ?? 0) + Number(calls) - Number(earlier.durations[at] ?? 0);
    });
  }
  const { grants, renewals, failed, durations } = sum;
  const { locks, waiters, leases } = (status.nodes.find((node) => node.member.leader && node.stats) ?? status.nodes.find((node) => node.stats)).stats;
  cluster.samples.push({ at: cluster.at, locks, waiters, leases, grants, renewals, failed, p50: quantile(durations, 0.5), p99: quantile(durations, 0.99) });
  if (cluster.samples.length > SAMPLES) cluster.samples.shift();
}

/** In microseconds, within the bucket that it falls into; nothing without calls. */
function quantile(durations, part) {
  const total = durations.reduce((sum, calls) => sum + calls, 0);
  if (!total) return null;
  let left = total * part;
  const at = durations.findIndex((calls) => (left -= calls) <= 0);
  const upper = 100 * 2 ** at;
  const lower = at ? upper / 2 : 0;
  return upper + (left / durations[at]) * (upper - lower);
}

/** The nodes that vote and answer, and how many that must be. */
export function quorum(status) {
  const voters = status.nodes.filter((node) => node.member.voter);
  const answering = voters.filter((node) => !node.problem && node.state !== "diverged").length;
  return { voters: voters.length, answering, needed: Math.floor(voters.length / 2) + 1 };
}

/** What is wrong, in a sentence each: [how bad, what]. */
export function problems(status) {
  const found = [];
  const add = (kind, text) => found.push([kind, text]);
  const { voters, answering, needed } = quorum(status);
  const named = (node) => node.member.nodeId;
  const healthy = status.nodes.filter((node) => !node.problem);
  if (!status.leaderId) add("bad", "No leader is known. No lock is granted and no lease is renewed until one is elected, which takes a second if a majority of the nodes can reach each other.");
  if (voters && answering < needed) add("bad", `Only ${answering} of ${voters} voting nodes answer, and ${needed} are needed. Bring nodes back before anything else.`);
  else if (voters > 1 && answering === needed && answering < voters) add("warn", `${answering} of ${voters} voting nodes answer: the loss of one more stops the cluster.`);
  else if (voters === 2) add("warn", "Two nodes vote. The loss of either stops the cluster: add a third.");
  for (const node of status.nodes) {
    if (node.problem) add(node.member.expected ? "info" : "bad", `${named(node)}: ${node.problem}.`);
    if (node.state === "diverged") add("bad", `${named(node)} differs from the others and serves nobody. It needs a look: see “A node diverged” in the manual.`);
    if (node.diskRoom === "EXHAUSTED") add("bad", `${named(node)}: its disk is full to the last byte. Free some space.`);
    if (node.diskRoom === "RESERVE") add("bad", `${named(node)}: its disk is full. It takes no new leases and locks until there is space.`);
    else if (!node.problem && Number(node.diskSizeBytes) && node.diskFreeBytes / node.diskSizeBytes < 0.05) add("warn", `${named(node)}: less than 5 % of its disk is free.`);
    if (!node.problem && !node.member.leader && Number(node.member.lag) > 1000) add("warn", `${named(node)} is ${node.member.lag} entries behind the leader.`);
    if (!node.problem && status.leaderId && node.leaderId !== status.leaderId) add("warn", `${named(node)} ${node.leaderId ? `takes ${node.leaderId} for the leader` : "knows no leader"}.`);
  }
  const versions = [...new Set(healthy.map((node) => node.version))];
  if (versions.length > 1) add("info", `The nodes run different versions (${versions.join(", ")}). Finish the upgrade: new features wait for it.`);
  if (status.leaving.length) add("info", `A node that was removed has not left the quorum yet (number ${status.leaving.join(", ")}).`);
  if (Number(status.recoveringSeconds)) add("warn", `The cluster was recovered, and grants no lock for ${status.recoveringSeconds} s at most, until clients of before have stopped believing.`);
  return found;
}
