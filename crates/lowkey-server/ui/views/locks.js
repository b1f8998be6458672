// Every lock: as a tree, by the length of its queue, or by how long it is held.

import { empty, h, name, plural, setText, short, show, span } from "../dom.js";
import { open } from "../locks.js";
import { Rows } from "../rows.js";

const ROW_HEIGHT = 38;
/** How often the order is made anew when there are many. */
const ORDER_MS = 1000;
const MANY = 5000;
/** The time left is told by no event: it is asked for, of what one sees. */
const READ_MS = 2500;
const FRESH_MS = 6000;

export default function locks({ main, query, setQuery, signal }) {
  const prefix = query.get("prefix") ?? "";
  const sort = query.get("sort") ?? "name";
  const search = h("input", { type: "search", id: "prefix", value: prefix, placeholder: "billing/", spellcheck: "false", autocapitalize: "off" });
  const by = h("select", { id: "sort", onchange: () => choose() }, [["name", "name, as a tree"], ["queue", "longest queue"], ["oldest", "held longest"]].map(([value, text]) => h("option", { value, selected: value === sort }, text)));
  const summary = h("p", { class: "weak summary", role: "status" });
  const place = h("div", { class: "fill" });
  const form = h("form", { class: "bar", role: "search", onsubmit: (event) => (event.preventDefault(), choose()) },
    h("label", { for: "prefix" }, "Names that begin with"), search, h("button", { type: "submit" }, "Show"),
    h("span", { class: "field" }, h("label", { for: "sort" }, "by"), by));
  main.append(h("h1", null, "Locks"), form, summary, place);
  let view = start(prefix, sort);
  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(choose, 400);
  });
  let chosen = `${prefix} ${sort}`;
  function choose() {
    const next = `${search.value} ${by.value}`;
    if (signal.aborted || next === chosen) return;
    chosen = next;
    setQuery({ prefix: search.value, sort: by.value === "name" ? "" : by.value });
    view.close();
    view = start(search.value, by.value);
  }
  function start(wanted, order) {
    const [store, release] = open(wanted);
    const list = order === "name" ? tree(store) : flat(store, order);
    const reader = setInterval(() => readVisible(store, list), READ_MS);
    setTimeout(() => readVisible(store, list), 300);
    const unfollow = store.follow(() => {
      setText(summary, told(store));
      const nothing = store.locks.size === 0 && problem(store, wanted);
      // The list keeps its own elements: it is put in and taken out whole.
      if (nothing && list.element.parentNode === place) place.replaceChildren(nothing);
      else if (nothing) show(place, nothing);
      else if (list.element.parentNode !== place) place.replaceChildren(list.element);
      place.classList.toggle("old-list", store.state === "lost");
      list.later();
    });
    const close = () => {
      clearInterval(reader);
      unfollow();
      list.close();
      release();
    };
    return { close };
  }
  return () => view.close();
}

function told(store) {
  const locksTold = plural(store.locks.size, "lock");
  if (store.state === "lost") return store.locks.size ? `Connection lost, retrying. These ${locksTold} are as they were.` : "";
  if (store.state === "loading") return `${locksTold} so far…`;
  const late = store.inTouch ? "" : " This node has lost touch with the leader: what you see may be late.";
  const polled = store.isPolled ? " They are not watched, but listed anew every 5 s." : "";
  const under = store.prefixes.filter(Boolean).map((it) => `“${it}”`).join(", ");
  return `${locksTold}${under && ` under ${under}`}, ${plural(store.root.waiting, "place")} in queues.${late}${polled}`;
}

/** What stands there instead of a list. */
function problem(store, prefix) {
  const { state, error } = store;
  if (state === "loading") return h("p", { class: "weak" }, "Loading…");
  if (error?.isRefusal) return empty("You may not see these locks.", `${error.message} Give a prefix that you may read, such as your team's, with a / behind it.`);
  if (error?.status === 401) return empty("Log in to see locks.", "The button is at the top of the page.");
  if (error?.status === 400) return empty("This is no prefix of a name.", error.message);
  if (error) return empty("The locks cannot be told now.", `${error.message}. It is tried again by itself.`);
  if (prefix) return empty("No lock begins with that.", "A lock exists while somebody holds it or waits for it. The search takes the beginning of a name, upper and lower case as they are.");
  return empty(store.prefixes.includes(prefix) ? "No lock is held." : "No lock that you may see is held.", "A lock exists while somebody holds it or waits for it. Try, in a terminal: ", h("code", null, "lowkey run nightly -- sleep 30"));
}

/** Reads anew what can be seen, some at a time. */
async function readVisible(store, list) {
  if (document.hidden || store.state !== "live" || list.isReading) return;
  list.isReading = true;
  const wanted = (list.items ?? []).map((item) => (item.lock === undefined ? item : item.lock)).filter((lock) => lock?.holderCount);
  const signal = store.stopping.signal;
  try {
    for (let at = 0; at < wanted.length && !signal.aborted; at += 6) {
      await Promise.all(wanted.slice(at, at + 6).map((lock) => store.read(lock.name, signal)));
    }
  } catch {
    // What has no fresh time left shows none. The store tells that the connection is lost.
  }
  list.isReading = false;
}

const COLUMNS = [["Name", "c-name"], ["Holder", "c-holder"], ["Token", "c-token"], ["Held for", "c-held"], ["Left", "c-left"], ["Queue", "c-queue"]];

function make() {
  const cell = (kind, ...children) => h("span", { class: kind, role: "gridcell" }, children);
  const row = h("div", { class: "row" });
  row.parts = {
    fold: h("span", { class: "fold", "aria-hidden": "true" }), link: h("a", { tabindex: "-1" }, name("")), below: h("span", { class: "weak below" }),
    holder: h("a", { tabindex: "-1" }, name("")), more: h("span", { class: "weak" }), token: h("span", { class: "number" }),
    held: h("time"), left: h("span", { class: "number" }), queue: h("span", { class: "number" }),
  };
  const { fold, link, below, holder, more, token, held, left, queue } = row.parts;
  row.append(cell("c-name", fold, link, below), cell("c-holder", holder, more), cell("c-token", token), cell("c-held", held), cell("c-left", left), cell("c-queue", queue));
  return row;
}

function link(element, text, href) {
  setText(element.firstChild, text);
  if (href) element.setAttribute("href", href);
  else element.removeAttribute("href");
  element.title = text;
}

/** What is known of a lock, in its row; a branch without a lock has nothing but its name. */
function fillLock(parts, lock) {
  const holder = lock?.holders[0];
  link(parts.holder, holder?.ownerId ?? "", holder && `#/session/${encodeURIComponent(holder.leaseId)}`);
  const others = (lock?.holderCount ?? 0) - 1;
  const covered = lock && !holder ? (lock.coveredBy ? `covered by ${lock.coveredBy}` : "nobody yet") : "";
  setText(parts.more, others > 0 ? ` and ${others} more` : holder?.scope === "SUBTREE" ? " with all below" : holder?.mode === "SHARED" ? " shared" : covered);
  setText(parts.token, holder?.fencingToken ?? "");
  const heldSince = Number(holder?.sinceUnixMs ?? 0);
  if (heldSince) {
    parts.held.dataset.since = heldSince;
    parts.held.dataset.suffix = "";
    parts.held.title = new Date(heldSince).toLocaleString("en-GB");
  } else delete parts.held.dataset.since;
  setText(parts.held, heldSince ? span(Date.now() - heldSince) : "");
  const age = Date.now() - (lock?.readAt ?? 0);
  const left = holder?.remainingMs === undefined || holder.remainingMs === null ? null : Number(holder.remainingMs) - age;
  setText(parts.left, left !== null && age < FRESH_MS ? span(left) : holder ? "…" : "");
  setText(parts.queue, lock?.waiterCount ? String(lock.waiterCount) : "");
  parts.queue.classList.toggle("long", (lock?.waiterCount ?? 0) > 0);
}

const openLock = (lock) => (location.hash = `#/lock/${encodeURIComponent(lock.name)}`);

/** Locks by their names, folded at each `/`. */
function tree(store) {
  const rows = new Rows({
    label: "Locks, as a tree", role: "treegrid", columns: COLUMNS, rowHeight: ROW_HEIGHT,
    source: {
      count: () => store.root.rows,
      rows(first, count) {
        const found = [];
        if (count <= 0) return found;
        for (const branch of store.rowsFrom(first)) {
          if (found.push(branch) >= count) break;
        }
        return found;
      },
      make,
      fill(row, branch) {
        const { parts } = row;
        const isBranch = branch.children.size > 0;
        row.className = `row depth-${Math.min(branch.depth, 12)}${isBranch ? " branch" : ""}`;
        row.setAttribute("aria-level", branch.depth + 1);
        if (isBranch) row.setAttribute("aria-expanded", branch.isOpen);
        else row.removeAttribute("aria-expanded");
        setText(parts.fold, isBranch ? (branch.isOpen ? "▾" : "▸") : "");
        link(parts.link, isBranch ? `${branch.part}/` : branch.part, branch.lock && `#/lock/${encodeURIComponent(branch.lock.name)}`);
        parts.link.title = branch.path;
        setText(parts.below, isBranch ? ` ${short(branch.locks)}${branch.waiting ? ` · ${short(branch.waiting)} waiting` : ""}` : "");
        fillLock(parts, branch.lock);
      },
      open(branch) {
        if (branch.lock) openLock(branch.lock);
        else this.fold(branch, !branch.isOpen);
      },
      fold(branch, isOpen) {
        branch.setOpen(isOpen);
      },
    },
  });
  return rows;
}

/** Locks in an order of their own. */
function flat(store, order) {
  let sorted = [];
  let of = -1;
  let at = 0;
  const now = Date.now();
  const age = (lock) => Math.max(0, Math.floor((now - Number(lock.holders[0]?.sinceUnixMs || now)) / 10)) + 1e6;
  const keys = { queue: (lock) => lock.waiterCount, oldest: (lock) => (lock.holders.length ? age(lock) : 0) };
  const inOrder = () => {
    const isDue = store.locks.size < MANY || performance.now() - at >= ORDER_MS;
    if (of !== store.version && isDue) [sorted, of, at] = [store.sortedBy(keys[order] ?? keys.queue), store.version, performance.now()];
    return sorted;
  };
  return new Rows({
    label: order === "queue" ? "Locks, longest queue first" : "Locks, held longest first", columns: COLUMNS, rowHeight: ROW_HEIGHT,
    source: {
      count: () => inOrder().length,
      rows: (first, count) => sorted.slice(first, first + count),
      make,
      fill(row, lock) {
        setText(row.parts.fold, "");
        link(row.parts.link, lock.name, `#/lock/${encodeURIComponent(lock.name)}`);
        fillLock(row.parts, lock);
      },
      open: openLock,
    },
  });
}

