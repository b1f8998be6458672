// Elements, and how numbers and times are written.
//
// Names, owners and values come from clients, and may be called anything. They reach the page through
// `append` of texts and through `setAttribute` only, so none of them ever becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Keys that begin with `on` are listeners; `null` and `false` are left out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An element of a picture. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) listen(element, key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** What an element does when something happens to it: kept beside it, so that `show` can put it anew. */
function listen(element, type, listener) {
  element.listeners ??= {};
  element.listeners[type] = listener;
  element.addEventListener(type, heard);
}

const heard = (event) => event.currentTarget.listeners[event.type](event);

/** Changes a text only if it is another one: what is equal needs no drawing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows children in place of those that are there. What is the same stays the very element that it was: with the
 * focus, the text that is marked, the button that is just being pressed. */
export const show = (element, ...children) => match(element, h("div", null, ...children));

function match(old, next) {
  const olds = [...old.childNodes];
  const nexts = [...next.childNodes];
  nexts.forEach((child, at) => {
    const was = olds[at];
    if (!was) old.append(child);
    else if (!isAlike(was, child)) was.replaceWith(child);
    else if (was.nodeType === Node.TEXT_NODE) was.data !== child.data && (was.data = child.data);
    else {
      for (const { name: key } of [...was.attributes]) if (!child.hasAttribute(key)) was.removeAttribute(key);
      for (const { name: key, value } of child.attributes) if (was.getAttribute(key) !== value) was.setAttribute(key, value);
      was.listeners = child.listeners;
      match(was, child);
    }
  });
  olds.slice(nexts.length).forEach((child) => child.remove());
}

const heardBy = (element) => Object.keys(element.listeners ?? {}).join();
const isAlike = (one, other) => one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "") && heardBy(one) === heardBy(other);

/** A name as a client chose it, apart from the text around it, whichever way it is written. */
export const name = (text) => h("bdi", { class: "name" }, text);

/** Where a lock, a session is shown. */
export const lockLink = (text, props) => h("a", { href: `#/lock/${encodeURIComponent(text)}`, ...props }, name(text));
export const leaseLink = (lease) => h("a", { href: `#/session/${encodeURIComponent(lease)}`, class: "number" }, lease);
export const ownerLink = (owner) => h("a", { href: `#/sessions?owner=${encodeURIComponent(owner)}` }, name(owner));

/** Orders tokens, leases and revisions: texts of digits that no number of this language can tell apart. */
export const byNumber = (one, other) => one.length - other.length || (one < other ? -1 : one > other ? 1 : 0);

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => NUMBER.format(value);
export const short = (value) => (value < 10_000 ? NUMBER.format(value) : SHORT.format(value));
export const plural = (value, one, many) => `${count(value)} ${value === 1 ? one : many ?? `${one}s`}`;

/** Per second: exact where it is little. */
export const rate = (value) => (value === null ? "–" : value < 10 && value > 0 ? value.toFixed(1) : short(Math.round(value)));

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = Number(value);
  while (left >= 1024 && at < units.length - 1) [left, at] = [left / 1024, at + 1];
  return `${left < 10 && at > 0 ? left.toFixed(1) : Math.round(left)} ${units[at]}`;
}

/** A duration from milliseconds, in the two units that matter. */
export function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** A latency from microseconds. */
export function latency(us) {
  if (us === null) return "–";
  return us < 1000 ? `${(us / 1000).toFixed(2)} ms` : us < 100_000 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export const exactTime = (ms) => exact.format(ms);
export const clockTime = (ms) => clock.format(ms);

/** How long ago something was, kept true by `tick`; the exact time on hover. 0 is a time that nobody knows. */
export function since(unixMs, suffix = "") {
  const ms = Number(unixMs);
  if (!ms) return h("span", { class: "weak" }, "–");
  const props = { datetime: new Date(ms).toISOString(), title: exactTime(ms), "data-since": ms, "data-suffix": suffix };
  return h("time", props, span(Date.now() - ms) + suffix);
}

/** Rewrites every relative time on the page. */
export function tick() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-since]")) {
    setText(time, span(now - time.dataset.since) + time.dataset.suffix);
  }
}

/** A table. `columns` are texts, or [text, class]; cells stand under them with the same class. */
export function table(caption, columns, rows) {
  const heads = columns.map((column) => [column].flat());
  const cell = (content, at) => h("td", { class: heads[at][1], "data-label": heads[at][0] || null }, content);
  return h("div", { class: "scroll" }, h("table", null,
    h("caption", { class: "spoken" }, caption),
    h("thead", null, h("tr", null, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text || h("span", { class: "spoken" }, "Actions"))))),
    h("tbody", null, rows.map((row) => h("tr", null, row.map(cell))))));
}

/** What stands where there is nothing to show: what that means, and what to do. */
export const empty = (title, ...more) => h("div", { class: "empty" }, h("p", { class: "title" }, title), h("p", null, ...more));

/** A mark with a word: never by colour alone. */
export const badge = (kind, text) => h("span", { class: `badge ${kind}` }, text);

/** A button that copies a text. */
export function copyButton(text, label) {
  async function copy({ currentTarget: button }) {
    try {
      await navigator.clipboard.writeText(text);
      setText(button, "Copied");
    } catch {
      // Only pages from loopback or with TLS may use the clipboard: the number can be marked by hand.
      setText(button, "Mark it and press Ctrl-C");
    }
    setTimeout(() => setText(button, "Copy"), 2000);
  }
  return h("button", { type: "button", class: "plain small", "aria-label": label, onclick: copy }, "Copy");
}
