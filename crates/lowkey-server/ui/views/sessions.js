// Sessions: the leases by their owners, and what each holds and waits for.

import { actor, get, post } from "../api.js";
import { confirm } from "../dialogs.js";
import { open } from "../locks.js";
import { badge, byNumber, empty, h, leaseLink, lockLink, ownerLink, plural, show, since, span, table } from "../dom.js";

const PAGE = 200;
const PAGE_MAX = 1000;
const READ_MS = 2000;

export default function sessions({ main, query, setQuery, signal }) {
  let owner = query.get("owner") ?? "";
  let most = PAGE;
  /** The locks that one may see, if that is not all sessions; and why. */
  let visible = null;
  const search = h("input", { type: "search", id: "owner", value: owner, placeholder: "worker-1", spellcheck: "false", autocapitalize: "off" });
  const place = h("section", { "aria-label": "Sessions" });
  const form = h("form", { class: "bar", role: "search", onsubmit: choose }, h("label", { for: "owner" }, "Owner"), search, h("button", { type: "submit" }, "Show"));
  main.append(h("h1", null, "Sessions"), h("p", { class: "weak" }, "A session is a lease that its client renews. When it ends, so does all that it holds."), form, place);
  show(place, h("p", { class: "weak" }, "Loading…"));
  function choose(event) {
    event.preventDefault();
    owner = search.value;
    setQuery({ owner });
    read();
  }
  async function read() {
    const asked = owner;
    if (visible && !asked) {
      showVisible(asked);
      return;
    }
    try {
      let page = { nextPageToken: "" };
      const leases = [];
      do {
        page = await get("/v1/leases", { owner_id: asked, page_size: Math.min(most - leases.length, PAGE_MAX), page_token: page.nextPageToken }, signal);
        leases.push(...page.leases);
      } while (page.nextPageToken && leases.length < most);
      if (asked === owner) show(place, list(leases, page.nextPageToken, asked));
    } catch (error) {
      if (signal.aborted || asked !== owner) return;
      if (!error.isRefusal) return void show(place, refused(error, "these sessions"));
      if (!visible) {
        const [store, release] = open("");
        visible = { store, release, error, unfollow: store.follow(() => setTimeout(() => signal.aborted || showVisible(owner))) };
      } else showVisible(asked);
    }
  }
  /** Who may not see all sessions sees those that have to do with its locks. */
  function showVisible(asked) {
    const { store, error } = visible;
    if (store.error) show(place, refused(error, "these sessions"));
    else if (store.state !== "loading") show(place, list(ofLocks(store).filter((lease) => !asked || lease.ownerId === asked), false, asked), h("p", { class: "weak" }, "You may not see all sessions: these hold or wait for locks that you may see."));
  }
  function list(leases, more, asked) {
    if (!leases.length) {
      return asked ? empty("This owner has no lease.", "The search takes whole names, as clients give them.") : empty("Nobody is here.", "A lease exists while its client renews it. Try, in a terminal: ", h("code", null, "lowkey run nightly -- sleep 30"));
    }
    leases.sort((a, b) => (a.ownerId < b.ownerId ? -1 : a.ownerId > b.ownerId ? 1 : byNumber(a.leaseId, b.leaseId)));
    const rows = leases.map((lease, at) => [
      leases[at - 1]?.ownerId === lease.ownerId ? h("span", { class: "weak" }, "〃", h("span", { class: "spoken" }, "the same")) : ownerLink(lease.ownerId),
      leaseLink(lease.leaseId), timeLeft(lease), lease.ttlSeconds ? `${lease.ttlSeconds} s` : "–", lease.grantCount, lease.waitCount,
    ]);
    const button = h("button", { type: "button", id: "more", onclick: () => ((most += PAGE), read()) }, `Show ${PAGE} more`);
    return h("div", null, table("Sessions", ["Owner", "Lease", "Time left", ["TTL", "number"], ["Holds", "number"], ["Waits for", "number"]], rows),
      h("p", { class: "weak" }, more ? `The first ${plural(leases.length, "lease")} by number. ` : plural(leases.length, "lease")), more ? button : null);
  }
  const timer = setInterval(() => document.hidden || read(), READ_MS);
  read();
  return () => {
    clearInterval(timer);
    visible?.unfollow();
    visible?.release();
  };
}

/** The leases that hold or wait for locks, as far as the list of locks tells of them. */
function ofLocks(store) {
  const leases = new Map();
  const add = ({ leaseId, ownerId }, field) => {
    const lease = leases.get(leaseId) ?? { leaseId, ownerId, grantCount: 0, waitCount: 0 };
    lease[field] += 1;
    leases.set(leaseId, lease);
  };
  for (const lock of store.locks.values()) {
    lock.holders.forEach((holder) => add(holder, "grantCount"));
    lock.waiters.forEach((waiter) => add(waiter, "waitCount"));
  }
  return [...leases.values()];
}

function refused(error, what) {
  if (error.isRefusal) return empty(`You may not see ${what}.`, error.message);
  if (error.status === 401) return empty(`Log in to see ${what}.`, "The button is at the top of the page.");
  if (error.status === 404) return empty("This lease is over.", "Its client ended it, or it was not renewed in time. ", h("a", { href: "#/sessions" }, "All sessions"));
  if (error.status === 400) return empty("There can be none of that name.", error.message);
  return empty("This cannot be told now.", `${error.message}. It is tried again by itself.`);
}

function timeLeft(lease) {
  if (lease.waiting) return badge("info", "begins with its first grant");
  if (lease.remainingMs === undefined || lease.remainingMs === null) return "…";
  const ttl = Number(lease.ttlSeconds) * 1000;
  const left = Number(lease.remainingMs);
  return h("span", { class: "left" }, h("meter", { min: 0, max: ttl, low: ttl / 3, value: left, "aria-label": "Time left" }), span(left));
}

/** One session. */
export function session({ main, subject, signal }) {
  const place = h("section", { "aria-label": "Session" });
  main.append(h("p", { class: "crumbs" }, h("a", { href: "#/sessions" }, "Sessions"), " /"), h("h1", null, "Lease ", subject), place);
  show(place, h("p", { class: "weak" }, "Asking…"));
  let timer;
  async function read() {
    try {
      const told = await get("/v1/lease", { lease_id: subject, page_size: PAGE }, signal);
      show(place, details(told));
    } catch (error) {
      if (signal.aborted) return;
      show(place, refused(error, "this session"));
      if (error.status === 404) clearInterval(timer);
    }
  }
  function details({ lease, grants, waits, nextPageToken }) {
    const held = grants.map((grant) => [lockLink(grant.lockName), grant.fencingToken, since(grant.sinceUnixMs), grant.mode === "SHARED" ? "shared" : "alone", grant.scope === "SUBTREE" ? "with all below it" : "the name"]);
    const wanted = waits.map((wait) => [lockLink(wait.lockName), wait.mode === "SHARED" ? "shared" : "alone", wait.scope === "SUBTREE" ? "with all below it" : "the name"]);
    return h("div", null,
      h("dl", { class: "facts" }, h("div", null, h("dt", null, "Owner"), h("dd", null, ownerLink(lease.ownerId))), h("div", null, h("dt", null, "Time left"), h("dd", null, timeLeft(lease))), h("div", null, h("dt", null, "TTL"), h("dd", null, `${lease.ttlSeconds} s`))),
      h("h2", null, `Holds ${plural(lease.grantCount, "lock")}`),
      held.length ? table("Locks that it holds", ["Lock", ["Token", "number"], "Held for", "How", "Covers"], held) : h("p", { class: "weak" }, "Nothing."),
      nextPageToken ? h("p", { class: "weak" }, `The first ${grants.length}.`) : null,
      h("h2", null, `Waits for ${plural(lease.waitCount, "lock")}`),
      wanted.length ? table("Locks that it waits for", ["Lock", "How", "Covers"], wanted) : h("p", { class: "weak" }, "Nothing."),
      h("div", { class: "actions" }, h("button", { type: "button", id: "revoke", class: "danger", onclick: () => revoke(lease, grants) }, "Revoke this lease…")));
  }
  function revoke(lease, grants) {
    const names = grants.slice(0, 5).map((grant) => grant.lockName).join(", ");
    const rest = lease.grantCount > 5 ? " and more" : "";
    confirm({
      title: `Revoke lease ${lease.leaseId}?`,
      says: [
        `The lease of ${lease.ownerId} ends at once.` + (lease.grantCount ? ` Its ${plural(lease.grantCount, "lock")} (${names}${rest}) go to whoever waits next.` : " It holds nothing."),
        "The client is not asked. It notices at its next renewal, and may act as holder until then: only resources that check fencing tokens are safe from late writes.",
      ],
      action: "Revoke it",
      run: async () => post("/v1/lease/revoke", { leaseId: lease.leaseId, ownerId: lease.ownerId, actor: await actor() }),
      done: (answer) => `Lease ${lease.leaseId} is revoked; ${plural(Number(answer.released), "lock")} released.`,
    });
  }
  timer = setInterval(() => document.hidden || read(), READ_MS);
  read();
  return () => clearInterval(timer);
}
