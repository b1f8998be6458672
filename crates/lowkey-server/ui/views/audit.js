// What happened, from the audit trail.

import { get, mine } from "../api.js";
import { badge, byNumber, empty, exactTime, h, lockLink, ownerLink, plural, show, span, table } from "../dom.js";

const MOST = 500;
const FIELDS = [["lock", "Lock", "billing/nightly, billing/"], ["owner", "Owner", "worker-1"], ["token", "Token", "42"]];
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

/** The last of what matches: { rows, gaps, more, prefixes }. */
async function ask({ lock, owner, token, since, cause }, signal) {
  const from = since ? Date.now() - Number(since) * 1000 : "";
  // What is asked of all locks is asked of those whose audit one may see.
  const { prefixes, names } = lock ? { prefixes: [lock], names: [] } : await mine("audit", "");
  const pages = [];
  for (const name of [...prefixes, ...names]) {
    pages.push(await get("/v1/audit", { name, owner_id: owner, fencing_token: token, since_unix_ms: from, cause, page_size: MOST, newest_first: true }, signal));
  }
  const rows = pages.flatMap((page) => page.grants);
  if (pages.length > 1) rows.sort(newest);
  const gaps = new Map(pages.flatMap((page) => page.gaps).map((gap) => [`${gap.afterRevision}-${gap.throughRevision}`, gap]));
  return { rows: rows.slice(0, MOST), gaps, more: rows.length > MOST || pages.some((page) => page.more), prefixes };
}

function newest(one, other) {
  const [ones, others] = [one, other].map((row) => row.position.split("."));
  return byNumber(others[0], ones[0]) || byNumber(others[1], ones[1]);
}

function refused(error) {
  if (error.isUnknownCall) return empty("This node keeps no audit trail.", "It is of a version without one, or was started with ", h("code", null, "--audit off"), ". What is known without it is on the page of each lock.");
  if (error.isRefusal) return empty("You may not see this of the audit trail.", error.message);
  if (error.status === 400) return empty("That cannot be searched for.", error.message);
  return empty("The audit trail cannot be read now.", `${error.message}. Search again in a moment.`);
}

function list({ rows, gaps, more, prefixes }) {
  const holes = [...gaps.values()].map((gap) => h("li", null, `What ended in the revisions ${BigInt(gap.afterRevision) + 1n} to ${gap.throughRevision} is not known (${gap.cause}).`));
  const missing = holes.length ? h("ul", { class: "weak" }, holes) : null;
  if (!rows.length) return h("div", null, empty("Nothing was found.", "The trail has grants that have ended. Search with less, or further back."), missing);
  const time = (ms) => (Number(ms) ? h("time", { title: exactTime(Number(ms)) }, exactTime(Number(ms))) : "?");
  const cells = rows.map((row) => [lockLink(row.lockName), row.fencingToken, ownerLink(row.ownerId), time(row.grantedUnixMs), Number(row.endedUnixMs) && Number(row.grantedUnixMs) ? span(row.endedUnixMs - row.grantedUnixMs) : "?", badge(KINDS[row.cause] ?? "calm", row.cause.replaceAll("_", " ")), row.perhapsUncommitted ? `perhaps never committed. ${row.detail}` : row.detail]);
  const under = prefixes.filter(Boolean).map((it) => `“${it}”`).join(", ");
  const which = `${more ? `The last ${MOST}: there are more` : plural(rows.length, "row")}${under && ` under ${under}`}.`;
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
