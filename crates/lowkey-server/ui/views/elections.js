// Elections: locks with a value, by which the others reach who leads.

import { empty, h, leaseLink, lockLink, name, ownerLink, plural, show, since, table } from "../dom.js";
import { open } from "../locks.js";

const MOST = 500;
const DRAW_MS = 500;

export default function elections({ main }) {
  const place = h("section", { "aria-label": "Elections" });
  main.append(h("h1", null, "Elections"), h("p", { class: "weak" }, "An election is a lock held alone with a value: how the others reach its leader. Each has its history of leaders on its own page."), place);
  show(place, h("p", { class: "weak" }, "Loading…"));
  const [store, release] = open("");
  let drawn = 0;
  let timer;
  const draw = () => {
    timer = undefined;
    drawn = performance.now();
    show(place, content(store));
  };
  const unfollow = store.follow(() => {
    timer ??= setTimeout(draw, Math.max(0, drawn + (store.locks.size > MOST ? DRAW_MS : 50) - performance.now()));
  });
  return () => {
    clearTimeout(timer);
    unfollow();
    release();
  };
}

function content(store) {
  const found = [];
  for (const lock of store.locks.values()) {
    const [leader] = lock.holders;
    if (leader?.value && leader.mode === "EXCLUSIVE" && found.push(lock) >= MOST) break;
  }
  if (!found.length) {
    if (store.error?.isRefusal) return empty("You may not list all locks, and so not all elections.", "Look for yours under ", h("a", { href: "#/locks" }, "Locks"), ", by its prefix.");
    if (store.error?.status === 401) return empty("Log in to see elections.", "The button is at the top of the page.");
    if (store.error) return empty("This cannot be told now.", `${store.error.message}. It is tried again by itself.`);
    if (store.state === "loading") return h("p", { class: "weak" }, "Loading…");
    return empty("Nobody leads anything.", "Try, in a terminal: ", h("code", null, "lowkey elect scheduler --value 10.0.0.1:4000 -- sleep 30"));
  }
  found.sort((a, b) => (a.name < b.name ? -1 : 1));
  const rows = found.map((lock) => {
    const [leader] = lock.holders;
    return [lockLink(lock.name), ownerLink(leader.ownerId), name(leader.value), since(leader.sinceUnixMs), leader.fencingToken, leaseLink(leader.leaseId), lock.waiterCount];
  });
  const late = store.state === "lost" ? h("p", { class: "problem" }, "Connection lost, retrying. This is as it was.") : null;
  const more = found.length >= MOST ? h("p", { class: "weak" }, `The first ${plural(MOST, "election")}.`) : null;
  return h("div", { class: store.state === "lost" ? "old-list" : null }, late, table("Elections", ["Election", "Leader", "Value", "Leads for", ["Token", "number"], "Lease", ["Candidates", "number"]], rows), more);
}
