/** A driver process, told by hand. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { eventually, PACKAGE } from "./cluster.js";

export type Line = Record<string, unknown> & { ok?: Record<string, unknown>; error?: Record<string, unknown> };

export class Driver {
  readonly #child = spawn(join(PACKAGE, "conformance-driver"), { stdio: ["pipe", "pipe", "inherit"] });
  readonly lines: Line[] = [];
  #last = 0;

  constructor() {
    createInterface({ input: this.#child.stdout }).on("line", (line) => this.lines.push(JSON.parse(line) as Line));
  }

  send(op: string, fields: Record<string, unknown> = {}): number {
    this.#last += 1;
    this.#child.stdin.write(`${JSON.stringify({ id: this.#last, op, ...fields })}\n`);
    return this.#last;
  }

  answer(id: number): Promise<Line> {
    return eventually(`an answer to ${id}`, () => this.lines.find((line) => line["id"] === id));
  }

  async ask(op: string, fields: Record<string, unknown> = {}): Promise<Line> {
    return this.answer(this.send(op, fields));
  }

  event(name: string): Promise<Line> {
    return eventually(`the event ${name}`, () => this.lines.find((line) => line["event"] === name));
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async end(): Promise<number> {
    const over = once(this.#child, "exit");
    this.#child.stdin.end();
    return ((await over) as [number])[0];
  }
}
