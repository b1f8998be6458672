// What is wrong with the page for people who see little or nothing, or use a keyboard; nothing if all is well.
// A handful of rules in the manner of the usual checkers, for what this page has.
const found = [];
const say = (element, what) => found.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
const visible = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !element.closest(".spoken");
const named = (element) =>
  [element.getAttribute("aria-label"), element.textContent, element.title, [...(element.labels ?? [])].map((label) => label.textContent).join(" "),
    (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ")]
    .some((text) => (text ?? "").trim());

if (!document.documentElement.lang) say(document.documentElement, "no language");
if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
for (const element of document.querySelectorAll("button, input, select, a[href], dialog, meter, [role=grid], [role=treegrid]")) {
  if (visible(element) && !named(element)) say(element, "no name");
}
for (const element of document.querySelectorAll("img:not([alt])")) say(element, "no alt");
for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) say(element, "an order of its own");
for (const element of document.querySelectorAll("th:not([scope])")) say(element, "no scope");
for (const element of document.querySelectorAll("table")) if (!element.caption) say(element, "no caption");
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`twice: ${id}`);
for (const row of document.querySelectorAll("[role=row]")) {
  if (visible(row) && !row.parentElement.closest("[role=grid], [role=treegrid]")) say(row, "a row of nothing");
}
let level = 0;
for (const heading of document.querySelectorAll("h1, h2, h3")) {
  const next = Number(heading.tagName[1]);
  if (next > level + 1) say(heading, "a level is left out");
  level = next;
}

// Contrast, of each text to the nearest background behind it.
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgba(color) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const color = rgba(getComputedStyle(at).backgroundColor);
    if (color[3] === 255) return color;
  }
  return [255, 255, 255, 255];
}
const light = (color) => color.slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !visible(element) || ["OPTION", "NOSCRIPT"].includes(element.tagName)) continue;
  const [ink, paper] = [rgba(getComputedStyle(element).color), background(element)].map(light);
  const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  if (contrast < 4.5) say(element, `contrast ${contrast.toFixed(2)}`);
}

// What a finger must hit, and whether one sees where the focus is.
for (const element of document.querySelectorAll("button, input, select, nav a")) {
  const { width, height } = element.getBoundingClientRect();
  if (visible(element) && (width < 24 || height < 20)) say(element, `only ${Math.round(width)} by ${Math.round(height)}`);
}
const before = document.activeElement;
for (const element of document.querySelectorAll("nav a, main input, main select, .rows-scroller")) {
  element.focus({ focusVisible: true });
  if (visible(element) && getComputedStyle(element).outlineStyle === "none") say(element, "no mark of focus");
}
before?.focus?.();
return [...new Set(found)].slice(0, 12);
