// What happened, from the audit trail.

import { get } from "../api.js";
import { badge, empty, exactTime, h, lockLink, ownerLink, plural, show, span, table } from "../dom.js";

const MOST = 500;
const PAGE = 1000;
/** So much of the trail is read for one search. */
const PAGES = 30;
const FIELDS = [["lock", "Lock", "billing/nightly"], ["owner", "Owner", "worker-1"], ["token", "Token", "42"]];
const TIMES = [["", "any time"], ["3600", "the last hour"], ["86400", "the last day"], ["604800", "the last week"]];
const CAUSES = ["", "released", "expired", "revoked", "held_too_long", "cluster_recovered"];
const KINDS = { released: "calm", expired: "bad", revoked: "bad", held_too_long: "warn", cluster_recovered: "warn" };

export default function audit({ main, query, setQuery, signal }) {
  const value = (key) => query.get(key) ?? "";
  const inputs = FIELDS.map(([key, label, example]) => h("span", { class: "field" }, h("label", { for: `audit-${key}` }, label), h("input", { type: "search", id: `audit-${key}`, name: key, value: value(key), placeholder: example, spellcheck: "false", autocapitalize: "off", inputmode: key === "token" ? "numeric" : null })));
  const select = (key, label, options) => h("span", { class: "field" }, h("label", { for: `audit-${key}` }, label), h("select", { id: `audit-${key}`, name: key }, options.map(([option, text]) => h("option", { value: option, selected: option === value(key) }, text))));
  const place = h("section", { "aria-label": "Audit" });
  const form = h("form", { class: "bar", role: "search", onsubmit: choose }, inputs, select("since", "Within", TIMES), select("cause", "Ended by", CAUSES.map((cause) => [cause, cause.replaceAll("_", " ") || "any cause"])), h("button", { type: "submit" }, "Search"));
  const save = h("button", { type: "button", hidden: true, onclick: () => download(rows) }, "Save as CSV");
  main.append(h("h1", null, "Audit"), h("p", { class: "weak" }, "One row for each grant that ended: who held what, from when to when, and why it ended. What is held now is under Locks."), form, save, place);
  let rows = [];
  function choose(event) {
    event.preventDefault();
    setQuery(Object.fromEntries(new FormData(form)));
    search();
  }
  async function search() {
    show(place, h("p", { class: "weak" }, "Searching…"));
    save.hidden = true;
    try {
      const found = await ask(Object.fromEntries(new FormData(form)), signal);
      rows = found.rows;
      show(place, list(found));
      save.hidden = !rows.length;
    } catch (error) {
      if (!signal.aborted) show(place, refused(error));
    }
  }
  search();
}

/** Reads the trail from its beginning, and keeps the last of what was found: { rows, gaps, more }. */
async function ask({ lock, owner, token, since, cause }, signal) {
  const from = since ? Date.now() - Number(since) * 1000 : "";
  const found = { rows: [], gaps: new Map(), isCut: false, more: false };
  let after = "";
  for (let page = 0; page < PAGES; page += 1) {
    const told = await get("/v1/audit", { lock_name: lock, owner_id: owner, fencing_token: token, since_unix_ms: from, cause, after, page_size: PAGE }, signal);
    for (const gap of told.gaps) found.gaps.set(`${gap.afterRevision}-${gap.throughRevision}`, gap);
    found.rows.push(...told.grants);
    if (found.rows.length > MOST) [found.rows, found.isCut] = [found.rows.slice(-MOST), true];
    found.more = told.more;
    if (!told.more) break;
    after = told.through;
  }
  found.rows.reverse();
  return found;
}

function refused(error) {
  if (error.isUnknownCall) return empty("This node keeps no audit trail.", "It is of a version without one, or was started with ", h("code", null, "--audit off"), ". What is known without it is on the page of each lock.");
  if (error.isRefusal) return empty("You may not see the audit trail.", error.message);
  if (error.status === 400) return empty("That cannot be searched for.", error.message);
  return empty("The audit trail cannot be read now.", `${error.message}. Search again in a moment.`);
}

function list({ rows, gaps, isCut, more }) {
  const holes = [...gaps.values()].map((gap) => h("li", null, `What ended in the revisions ${Number(gap.afterRevision) + 1} to ${gap.throughRevision} is not known (${gap.cause}).`));
  const missing = holes.length ? h("ul", { class: "weak" }, holes) : null;
  if (!rows.length) return h("div", null, empty("Nothing was found.", "The trail has grants that have ended. Search with less, or further back."), missing);
  const time = (ms) => (Number(ms) ? h("time", { title: exactTime(Number(ms)) }, exactTime(Number(ms))) : "?");
  const cells = rows.map((row) => [lockLink(row.lockName), row.fencingToken, ownerLink(row.ownerId), time(row.grantedUnixMs), Number(row.endedUnixMs) && Number(row.grantedUnixMs) ? span(row.endedUnixMs - row.grantedUnixMs) : "?", badge(KINDS[row.cause] ?? "calm", row.cause.replaceAll("_", " ")), row.perhapsUncommitted ? `perhaps never committed. ${row.detail}` : row.detail]);
  const which = more ? "There is much more: search for less." : isCut ? `The last ${MOST}.` : plural(rows.length, "row");
  return h("div", null, table("Grants that ended", ["Lock", ["Token", "number"], "Owner", "Granted", "Held for", "Ended by", "Detail"], cells), h("p", { class: "weak" }, which), missing);
}

/** The rows as a file. A cell that a spreadsheet would take for a formula gets a mark in front. */
function download(rows) {
  const columns = ["lockName", "fencingToken", "ownerId", "leaseId", "grantedUnixMs", "endedUnixMs", "cause", "detail"];
  const cell = (value) => `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const text = [columns.join(","), ...rows.map((row) => columns.map((column) => cell(row[column])).join(","))].join("\r\n");
  const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  h("a", { href, download: "lowkey-audit.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}
