// A list of any length of which only the visible rows exist.
//
// The keyboard moves a mark: the list has the focus, and tells which row is marked.

import { h } from "./dom.js";

/** No browser scrolls further than some 16 million pixels. Longer lists are scrolled in larger steps. */
const HEIGHT_MAX = 8_000_000;

let lists = 0;

/**
 * `source` has: count(); rows(first, count), the items; make(), an empty row; fill(row, item, at);
 * open(item), for Enter; fold(item, isOpen), for the arrows left and right; key(item), what is the same row.
 */
export class Rows {
  constructor({ label, role, columns, rowHeight, source }) {
    this.source = source;
    this.rowHeight = rowHeight;
    this.id = `rows-${(lists += 1)}`;
    this.pool = [];
    this.marked = 0;
    this.body = h("div", { class: "rows-body", role: "rowgroup" });
    this.space = h("div", { class: "rows-space", role: "presentation" }, this.body);
    this.scroller = h("div", { class: "rows-scroller", tabindex: "0", role: role ?? "grid", "aria-label": label, onscroll: () => this.later(), onkeydown: (event) => this.key(event) }, this.space);
    const head = h("div", { class: "rows-head", "aria-hidden": "true" }, columns.map(([text, kind]) => h("span", { class: kind }, text)));
    this.element = h("div", { class: "rows" }, head, this.scroller);
    this.observer = new ResizeObserver(() => this.later());
    this.observer.observe(this.scroller);
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  /** Draws with the next frame. */
  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  get visible() {
    return Math.ceil(this.scroller.clientHeight / this.rowHeight) + 1;
  }

  draw() {
    const count = this.source.count();
    const wanted = count * this.rowHeight;
    const height = Math.min(wanted, HEIGHT_MAX);
    this.space.style.height = `${height}px`;
    this.scroller.style.setProperty("--wanted", `${height + 1}px`);
    const view = this.scroller.clientHeight;
    const top = Math.min(this.scroller.scrollTop, Math.max(0, height - view));
    this.scale = wanted > HEIGHT_MAX ? (wanted - view) / (HEIGHT_MAX - view) : 1;
    const exact = (top * this.scale) / this.rowHeight;
    const first = Math.max(0, Math.min(Math.floor(exact), count - 1));
    this.first = first;
    this.body.style.transform = `translateY(${top - (exact - first) * this.rowHeight}px)`;
    const items = this.source.rows(first, Math.min(this.visible, count - first));
    this.scroller.setAttribute("aria-rowcount", count);
    while (this.pool.length < items.length) {
      const row = this.source.make();
      row.id = `${this.id}-${this.pool.length}`;
      row.setAttribute("role", "row");
      row.addEventListener("click", (event) => this.click(event, row));
      this.pool.push(row);
      this.body.append(row);
    }
    this.pool.forEach((row, at) => {
      row.hidden = at >= items.length;
      row.item = items[at];
      if (row.hidden) return;
      this.source.fill(row, items[at], first + at);
      row.setAttribute("aria-rowindex", first + at + 1);
      row.classList.toggle("marked", first + at === this.marked);
    });
    this.marked = Math.max(0, Math.min(this.marked, count - 1));
    const row = this.pool[this.marked - first];
    if (row && !row.hidden) this.scroller.setAttribute("aria-activedescendant", row.id);
    else this.scroller.removeAttribute("aria-activedescendant");
    this.items = items;
  }

  click(event, row) {
    this.marked = this.first + this.pool.indexOf(row);
    if (event.target.closest(".fold")) this.source.fold?.(row.item, !row.item.isOpen);
    else if (!event.target.closest("a[href], button")) this.source.open?.(row.item);
    this.later();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target !== this.scroller) return;
    const page = Math.max(1, this.visible - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const [item] = this.source.rows(this.marked, 1);
    if (event.key in moves) this.mark(this.marked + moves[event.key]);
    else if (event.key === "Enter" && item) this.source.open?.(item);
    else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && item && this.source.fold) {
      this.source.fold(item, event.key === "ArrowRight");
      this.later();
    } else return;
    event.preventDefault();
  }

  mark(at) {
    this.marked = Math.max(0, Math.min(at, this.source.count() - 1));
    const whole = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight));
    const exact = (this.scroller.scrollTop * this.scale) / this.rowHeight;
    let first = exact;
    if (this.marked < exact) first = this.marked;
    else if (this.marked > exact + whole - 1) first = this.marked - whole + 1;
    if (first !== exact) this.scroller.scrollTop = (first * this.rowHeight) / this.scale;
    this.draw();
  }
}
