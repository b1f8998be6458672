/** Server-sent events: the lines of a stream, put together to events. */

/** One event of a stream. */
export interface StreamEvent {
  /** `message` if the stream names none. */
  readonly type: string;
  readonly id: string | undefined;
  readonly data: string;
}

/** A line longer than this is no line of this service. */
const LINE_MAX = 1024 * 1024;

/** Puts pieces of text together. A piece may end anywhere, also within a character of several bytes. */
export class EventParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #type = "";
  #id: string | undefined;
  #data: string[] = [];

  /** The events that are complete with this piece. */
  push(chunk: Uint8Array): StreamEvent[] {
    const lines = (this.#rest + this.#decoder.decode(chunk, { stream: true })).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > LINE_MAX) throw new Error("a line of the stream is too long");
    return lines.flatMap((line) => this.#line(line) ?? []);
  }

  #line(line: string): StreamEvent | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#type = value;
    else if (field === "id") this.#id = value;
    else if (field === "data") this.#data.push(value);
    return undefined;
  }

  #dispatch(): StreamEvent | undefined {
    const event = { type: this.#type || "message", id: this.#id, data: this.#data.join("\n") };
    const isEmpty = this.#data.length === 0;
    this.#type = "";
    this.#id = undefined;
    this.#data = [];
    return isEmpty ? undefined : event;
  }
}
