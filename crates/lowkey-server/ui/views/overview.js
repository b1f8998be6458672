// How the cluster is, at one look: what is wrong, how much there is, what happens.

import { STREAMS, events, mine, pause } from "../api.js";
import { cluster, follow, problems } from "../cluster.js";
import { badge, bytes, empty, h, latency, lockLink, name, ownerLink, plural, rate, setText, short, show, since, svg } from "../dom.js";

const NEWEST = 12;
const WIDTH = 120;
const HEIGHT = 30;

const WORDS = {
  ACQUIRED: ["good", "acquired"], RELEASED: ["calm", "released"], EXPIRED: ["bad", "expired"], REVOKED: ["bad", "revoked"],
  WAITING: ["warn", "waits"], CANCELLED: ["calm", "gave up"], VALUE: ["info", "new value"],
};

export default function overview({ main, signal }) {
  const health = h("section", { "aria-label": "Health", class: "health" });
  const tiles = h("section", { "aria-label": "Numbers", class: "tiles" });
  const nodes = h("section", { "aria-label": "Nodes" });
  const news = h("ol", { class: "news" });
  const about = h("p", { class: "weak" });
  main.append(h("h1", null, "Overview"), health, tiles, h("h2", null, "Nodes"), nodes, h("h2", null, "What happens"), about, news);
  const numbers = makeTiles(tiles);
  show(health, h("p", { class: "weak" }, "Asking the nodes…"));
  show(news, h("li", { class: "weak" }, "Nothing yet since you look."));
  watch(news, about, signal);
  return follow(() => {
    const { status, error } = cluster;
    if (error?.isRefusal || error?.status === 401) {
      show(health, refused(error, "how the cluster is"));
      show(nodes);
    }
    if (!status || error) return;
    showHealth(health, status);
    numbers(status);
    showNodes(nodes, status);
  });
}

/** What stands where one may not look. */
export const refused = (error, what) => (error.isRefusal
  ? empty(`You may not see ${what}.`, error.message)
  : empty(`Log in to see ${what}.`, "The button is at the top of the page."));

function showHealth(health, status) {
  const found = problems(status);
  const well = h("p", { class: "well" }, badge("good", "well"), `All ${plural(status.nodes.length, "node")} answer, and ${status.leaderId} leads.`);
  show(health, found.length ? h("ul", { class: "problems" }, found.map(([kind, text]) => h("li", null, badge(kind, { bad: "wrong", warn: "watch out", info: "note" }[kind]), h("span", null, text)))) : well);
}

/** The tiles, made once; gives what fills them. */
function makeTiles(section) {
  const tile = (label, about, href) => {
    const value = h("strong", null, "–");
    const line = h("span", { class: "spark" });
    const text = href ? h("a", { href }, label) : label;
    section.append(h("div", { class: "tile", title: about }, h("span", { class: "label" }, text), value, line));
    return { value, line };
  };
  const locks = tile("Locks", "Names that are held or waited for", "#/locks");
  const waiters = tile("Waiting", "Places in queues", "#/locks?sort=queue");
  const leases = tile("Leases", "Clients that are present", "#/sessions");
  const grants = tile("Grants/s", "Locks granted in a second, all nodes together, over a second");
  const renewals = tile("Renewals/s", "Leases renewed in a second, all nodes together, over a second");
  const p50 = tile("p50", "Half of all calls take no longer; calls that wait for a lock are left out");
  const p99 = tile("p99", "All but one call in a hundred take no longer; calls that wait for a lock are left out");
  return (status) => {
    const leader = status.nodes.find((node) => node.member.leader && node.stats) ?? status.nodes.find((node) => node.stats);
    setText(locks.value, short(leader?.stats.locks ?? 0));
    setText(waiters.value, short(leader?.stats.waiters ?? 0));
    setText(leases.value, short(leader?.stats.leases ?? 0));
    const last = cluster.samples.at(-1);
    for (const [{ line }, field] of [[locks, "locks"], [waiters, "waiters"], [leases, "leases"]]) drawLine(line, cluster.samples.map((sample) => sample[field]));
    for (const [{ value, line }, field, word] of [[grants, "grants", rate], [renewals, "renewals", rate], [p50, "p50", latency], [p99, "p99", latency]]) {
      setText(value, last ? word(last[field]) : "–");
      drawLine(line, cluster.samples.map((sample) => sample[field] ?? 0));
    }
  };
}

/** The last minute as a line, from 0 up to their greatest value. */
function drawLine(place, values) {
  if (!place.firstChild) {
    place.append(svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("polyline", { fill: "none" })));
  }
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${(WIDTH - (values.length - 1 - at)).toFixed(0)},${(HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1)}`);
  place.firstChild.firstChild.setAttribute("points", points.join(" "));
}

export function role(node) {
  if (node.problem) return badge(node.member.expected ? "info" : "bad", node.member.expected ? "expected" : "no answer");
  return badge({ leader: "good", follower: "calm", learner: "info", candidate: "warn" }[node.state] ?? "bad", node.state);
}

function showNodes(section, status) {
  const fact = (label, value, about) => h("div", { title: about }, h("dt", null, label), h("dd", null, value));
  show(section, h("ul", { class: "cards" }, status.nodes.map((node) => h("li", { class: node.problem ? "card gone" : "card" },
    h("h3", null, name(node.member.nodeId), role(node)),
    node.problem ? h("p", { class: "problem" }, node.problem) : null,
    h("dl", null,
      fact("Term", node.problem ? "–" : node.term),
      fact("Lag", lag(node, status), "Log entries that it lacks"),
      fact("Version", node.version || "–"),
      fact("Disk free", disk(node)),
      fact("Last answer", lastAnswer(node)))))));
}

export function lag(node, status) {
  if (node.problem) return "–";
  if (node.member.leader) return "leads";
  return status.leaderId ? plural(Number(node.member.lag), "entry", "entries") : "unknown";
}

export const disk = (node) => (Number(node.diskSizeBytes) ? `${bytes(node.diskFreeBytes)} of ${bytes(node.diskSizeBytes)}` : "–");

export function lastAnswer(node) {
  if (!node.problem) return "now";
  const at = cluster.contact.get(node.member.nodeId);
  return at ? since(at, " ago") : "not since you look";
}

/** The newest changes of the locks that one may watch. */
async function watch(news, about, signal) {
  let newest = [];
  let isRefused = false;
  let timer;
  const draw = () => {
    timer = undefined;
    show(news, newest.map((event) => h("li", null,
      badge(...(WORDS[event.type] ?? ["calm", event.type.toLowerCase()])), h("span", { class: "what" }, lockLink(event.name)),
      h("span", { class: "who" }, ownerLink(event.owner)), event.fencingToken === "0" ? null : h("span", { class: "weak" }, `token ${event.fencingToken}`),
      since(event.atUnixMs, " ago"))));
  };
  const listen = async (prefix, stopped) => {
    for await (const some of events("/v1/watch", { prefix }, stopped)) {
      newest = [...some.filter((event) => event.name).reverse(), ...newest].slice(0, NEWEST);
      if (newest.length) timer ??= setTimeout(draw, 200);
    }
  };
  while (!signal.aborted) {
    const { prefixes } = await mine("watch", "");
    const watched = prefixes.slice(0, STREAMS);
    setText(about, watched[0] ? `Only what is under ${watched.map((prefix) => `“${prefix}”`).join(" and ")}.` : "");
    const round = new AbortController();
    try {
      const stopped = AbortSignal.any([signal, round.signal]);
      await Promise.race(watched.map((prefix) => listen(prefix, stopped)));
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) {
        show(news, h("li", { class: "weak" }, "Log in to see what happens."));
        return;
      }
      // Who has just logged in is refused first, and then asked anew what is granted.
      if (error.isRefusal && isRefused) {
        show(news, h("li", { class: "weak" }, "You may not watch any locks."));
        return;
      }
      isRefused = error.isRefusal;
    } finally {
      round.abort();
    }
    await pause(1000, signal);
  }
}
