// The frame of the page: which view is shown, whether the node answers, who has logged in.

import { isLoggedIn, logIn, logOut, setLogin, whoAmI } from "./api.js";
import { cluster, follow, quorum, run } from "./cluster.js";
import { askForToken } from "./dialogs.js";
import { clockTime, h, name, setText, show, span, tick } from "./dom.js";
import { forget } from "./locks.js";
import audit from "./views/audit.js";
import elections from "./views/elections.js";
import lock from "./views/lock.js";
import locks from "./views/locks.js";
import nodes from "./views/nodes.js";
import overview from "./views/overview.js";
import sessions, { session } from "./views/sessions.js";

/** What stands behind the `#`: a view, and what it is about. */
const VIEWS = { "": overview, locks, lock, elections, sessions, session, audit, cluster: nodes };
const PARENTS = { lock: "locks", session: "sessions" };
const TITLES = { "": "Overview", locks: "Locks", elections: "Elections", sessions: "Sessions", audit: "Audit", cluster: "Cluster" };

const byId = (id) => document.getElementById(id);
const main = byId("main");
let close = () => {};
let shown = null;

/** `#/view/subject?parameters`, as a link or a bookmark has it. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, ...rest] = path.split("/");
  let subject = rest.join("/");
  try {
    subject = decodeURIComponent(subject);
  } catch {
    // Typed by hand, with a `%` that means itself.
  }
  return { view, subject, query: new URLSearchParams(query) };
}

/** Changes the parameters of the address without a new step in the history. */
function setQuery(changes) {
  const { view, subject, query } = route();
  for (const [key, value] of Object.entries(changes)) value ? query.set(key, value) : query.delete(key);
  const text = query.toString();
  history.replaceState(null, "", `#/${view}${subject && `/${encodeURIComponent(subject)}`}${text && `?${text}`}`);
  shown = location.hash;
}

function go() {
  if (shown === location.hash) return;
  const isFirst = shown === null;
  shown = location.hash;
  close();
  const { view, subject, query } = route();
  const make = VIEWS[view];
  main.replaceChildren();
  document.title = `${subject || TITLES[view] || "Not found"} · lowkey`;
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.getAttribute("href").slice(2);
    if (target === (PARENTS[view] ?? view)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const stopped = new AbortController();
  const unfollow = make?.({ main, subject, query, setQuery, signal: stopped.signal });
  if (!make) main.append(h("h1", null, "Not found"), h("p", null, "There is no such view. ", h("a", { href: "#/" }, "To the overview")));
  close = () => {
    stopped.abort();
    unfollow?.();
  };
  window.scrollTo(0, 0);
  if (!isFirst) main.focus({ preventScroll: true });
}

/** Loads the view anew: with another token it may show other things. */
function again() {
  forget();
  shown = null;
  go();
  showLogin();
}

async function showLogin() {
  const button = byId("login");
  button.hidden = !isLoggedIn() && !byId("login").dataset.needed;
  setText(button, isLoggedIn() ? "Log out" : "Log in");
  const principal = isLoggedIn() && (await whoAmI());
  if (principal && isLoggedIn()) setText(button, `Log out ${principal}`);
}

/** Where one is, and whether what one sees is of now. */
function showConnection() {
  const { status, error, lostAt, at } = cluster;
  const isLost = Boolean(error) && !error.isRefusal && error.status !== 401;
  document.body.classList.toggle("old", isLost);
  const banner = byId("banner");
  banner.hidden = !isLost;
  if (isLost) {
    const others = (status?.nodes ?? []).filter((node) => node.member.nodeId !== status.nodeId && node.member.httpAddress);
    const links = others.flatMap((node) => [" ", h("a", { href: `${location.protocol}//${node.member.httpAddress}/ui/${location.hash}` }, node.member.nodeId)]);
    show(banner,
      h("strong", null, "Connection lost, retrying. "), at ? `What you see is of ${clockTime(at)}. ` : "", `${error.message}. `,
      links.length ? h("span", null, "The same page at another node:", links) : null);
  }
  byId("where").hidden = !status;
  if (status) {
    const { voters, answering } = quorum(status);
    show(byId("where"), "at ", name(status.nodeId), " · ", status.leaderId ? h("span", null, name(status.leaderId), " leads") : "no leader", ` · ${answering}/${voters} nodes`);
  }
}

function keys(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "/") {
    const field = main.querySelector("input[type=search]");
    if (!field) return;
    field.focus();
    field.select();
    event.preventDefault();
  } else if (event.key >= "1" && event.key <= "6") {
    document.querySelectorAll("nav a")[event.key - 1].click();
  }
}

setLogin(async (refused) => {
  byId("login").dataset.needed = "yes";
  const token = await askForToken(refused);
  setTimeout(showLogin);
  return token;
});
byId("login").addEventListener("click", async () => {
  if (isLoggedIn()) {
    logOut();
    again();
  } else if (await logIn()) again();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", go);
document.addEventListener("keydown", keys);
follow(showConnection);
setInterval(() => {
  tick();
  if (cluster.lostAt) byId("banner").title = `for ${span(Date.now() - cluster.lostAt)}`;
}, 1000);
go();
run();
