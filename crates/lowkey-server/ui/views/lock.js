// One lock: who holds it, who waits, and its story as far as somebody remembers it.

import { behind, events, get, pause } from "../api.js";
import { badge, byNumber, clockTime, copyButton, empty, exactTime, h, leaseLink, name, ownerLink, plural, show, since, span, table } from "../dom.js";

const STORY = 30;
const READ_MS = 2000;

const CAUSES = {
  RELEASED: ["calm", "released"], EXPIRED: ["bad", "lease ran out"], REVOKED: ["bad", "revoked"],
  HELD_TOO_LONG: ["warn", "held too long"], CLUSTER_RECOVERED: ["warn", "cluster recovered"],
};

export default function lock({ main, subject, signal }) {
  const now = h("section", { "aria-label": "Now" });
  const queue = h("section", { "aria-label": "Queue" });
  const told = h("section", { "aria-label": "What stands out" });
  const story = h("section", { "aria-label": "Story" });
  main.append(h("p", { class: "crumbs" }, crumbs(subject)), h("h1", null, name(subject)), now, h("h2", null, "Queue"), queue, told, h("h2", null, "Story"), story);
  const grants = new Map();
  let known = null;
  let isReading = false;
  let again = false;
  show(now, h("p", { class: "weak" }, "Asking…"));

  async function read() {
    if (isReading) {
      again = true;
      return;
    }
    isReading = true;
    try {
      known = await get("/v1/lock", { name: subject }, signal);
      draw();
    } catch (error) {
      if (signal.aborted) return;
      if (!known || error.status >= 400) {
        show(now, refused(error));
        show(queue);
      }
    }
    isReading = false;
    if (again) {
      again = false;
      read();
    }
  }

  function draw() {
    show(now, ...held(known));
    show(queue, waiting(known));
  }

  async function watch() {
    let position = { from: "1" };
    let isWhole = true;
    while (!signal.aborted) {
      try {
        for await (const some of events("/v1/watch", { name: subject, ...position }, signal)) {
          let hasNews = false;
          for (const event of some) {
            position = behind(event);
            if (event.name) hasNews = note(grants, event) || hasNews;
          }
          if (hasNews) read();
          show(story, tell(grants, isWhole));
        }
      } catch (error) {
        if (signal.aborted) return;
        const floor = error.reason === "COMPACTED" && error.metadata.floor;
        if (floor && floor !== position.after) {
          // The node remembers what is behind this; what was before is only in the audit trail.
          position = { after: floor };
          isWhole = false;
          continue;
        }
        if (error.isRefusal) show(story, refused(error));
        if (error.status >= 400) await pause(5000, signal);
      }
      await pause(500, signal);
    }
  }

  explain(told, grants, subject, signal).then(() => signal.aborted || show(story, tell(grants, false)));
  read();
  watch();
  const timer = setInterval(() => document.hidden || read(), READ_MS);
  return () => clearInterval(timer);
}

function crumbs(subject) {
  const parts = subject.split("/");
  const links = parts.slice(0, -1).map((part, at) => {
    const prefix = `${parts.slice(0, at + 1).join("/")}/`;
    return [h("a", { href: `#/locks?prefix=${encodeURIComponent(prefix)}` }, name(part || "/")), " / "];
  });
  return [h("a", { href: "#/locks" }, "Locks"), " / ", links];
}

function refused(error) {
  if (error.isRefusal) return empty("You may not see this lock.", error.message);
  if (error.status === 401) return empty("Log in to see this lock.", "The button is at the top of the page.");
  if (error.status === 400) return empty("No lock can be called that.", error.message);
  return empty("This cannot be told now.", `${error.message}. It is tried again by itself.`);
}

function held(lock) {
  if (!lock.holders.length) {
    const covered = lock.coveredBy ? ["It is covered by ", h("a", { href: `#/lock/${encodeURIComponent(lock.coveredBy)}` }, name(lock.coveredBy)), ", which is held with all below it."] : ["It can be had at once."];
    return [h("p", { class: "state" }, badge("calm", "free"), "Nobody holds it. ", covered)];
  }
  const columns = ["Holder", ["Fencing token", "number"], "Lease", "Held for", ["Time left", "number"], "How", "Value"];
  const rows = lock.holders.map((holder) => [
    ownerLink(holder.ownerId),
    h("span", { class: "token" }, h("b", null, holder.fencingToken), copyButton(holder.fencingToken, `Copy the token ${holder.fencingToken}`)),
    leaseLink(holder.leaseId), since(holder.sinceUnixMs),
    holder.remainingMs === undefined || holder.remainingMs === null ? "…" : span(Number(holder.remainingMs)),
    how(holder), holder.value ? name(holder.value) : h("span", { class: "weak" }, "none"),
  ]);
  const more = lock.holderCount - lock.holders.length;
  return [h("p", { class: "state" }, badge("good", "held"), `by ${plural(lock.holderCount, "holder")}`), table("Holders", columns, rows), more > 0 ? h("p", { class: "weak" }, `and ${more} more`) : ""];
}

const how = (grant) => (grant.mode === "SHARED" ? "shared" : "alone") + (grant.scope === "SUBTREE" ? ", with all below it" : "");

const QUEUE = 50;

function waiting(lock) {
  if (!lock.waiterCount) return h("p", { class: "weak" }, "Nobody waits.");
  const rows = lock.waiters.slice(0, QUEUE).map((waiter) => [waiter.position, ownerLink(waiter.ownerId), leaseLink(waiter.leaseId), how(waiter)]);
  const more = lock.waiterCount - rows.length;
  return h("div", null, table("Who waits, first come first", [["Place", "number"], "Owner", "Lease", "Wants it"], rows), more > 0 ? h("p", { class: "weak" }, `and ${more} more`) : null);
}

/** Takes an event into the story; true if it changes who holds or waits. */
function note(grants, event) {
  const token = event.fencingToken;
  if (event.type === "ACQUIRED") {
    const known = grants.get(token);
    if (!known) grants.set(token, { token, owner: event.owner, lease: event.leaseId, from: Number(event.atUnixMs), value: event.value });
    if (grants.size > STORY * 2) grants.delete(grants.keys().next().value);
  } else if (event.type in CAUSES) {
    const grant = grants.get(token);
    if (grant) Object.assign(grant, { to: Number(event.atUnixMs), cause: event.type, actor: event.actor });
  }
  return true;
}

function tell(grants, isWhole) {
  const before = isWhole ? "Before that there was nothing." : "What was before that, this node does not remember. The audit view may.";
  if (!grants.size) return h("p", { class: "weak" }, isWhole ? "Nobody has ever held it." : "Nobody has held it for as long as this node remembers.");
  const items = [...grants.values()].sort((a, b) => byNumber(b.token, a.token)).slice(0, STORY).map((grant) => h("li", { class: grant.to ? "" : "now" },
    h("span", { class: "when" }, h("time", { title: exactTime(grant.from) }, grant.from ? clockTime(grant.from) : "?")),
    h("span", null, ownerLink(grant.owner), " with token ", h("b", { class: "number" }, grant.token), " and lease ", leaseLink(grant.lease)),
    h("span", { class: "end" }, ending(grant))));
  return h("div", null, h("ol", { class: "story" }, items), h("p", { class: "weak" }, before));
}

function ending(grant) {
  if (!grant.cause) return [badge("good", "holds it"), " for ", since(grant.from)];
  const [kind, word] = CAUSES[grant.cause] ?? ["calm", grant.cause.toLowerCase()];
  const by = grant.actor && grant.actor !== grant.owner ? [" by ", name(grant.actor)] : [];
  return [badge(kind, word), by, grant.from && grant.to ? ` after ${span(grant.to - grant.from)}` : ""];
}

/** What the audit trail knows of it, if there is one: what stands out, and grants that the node has forgotten. */
async function explain(place, grants, subject, signal) {
  let told;
  try {
    told = await get("/v1/explain", { name: subject }, signal);
  } catch {
    // Without a trail, or without the permission, the story of the watch is what there is.
    return;
  }
  for (const { fencingToken: token, ownerId, leaseId, grantedUnixMs, endedUnixMs, cause, actor } of told.grants) {
    const known = { token, owner: ownerId, lease: leaseId, from: Number(grantedUnixMs), to: Number(endedUnixMs), cause: cause.toUpperCase(), actor };
    if (cause) grants.set(token, known);
  }
  if (told.oddities.length) show(place, h("h2", null, "What stands out"), h("ul", null, told.oddities.map((text) => h("li", null, text))));
}
