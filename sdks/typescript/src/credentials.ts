/** Files that say who this client is and whom it trusts. All of them are read again when they change. */
import { readFileSync, statSync } from "node:fs";
import { InvalidArgumentError } from "./errors.js";

/** How often a file is looked at, at most. */
const LOOK_INTERVAL_MS = 1_000;

/** Certificates and key, as PEM files. */
export interface TlsFiles {
  readonly ca?: string | undefined;
  readonly cert?: string | undefined;
  readonly key?: string | undefined;
}

/** The contents of TLS files. */
export interface TlsContents {
  ca?: Buffer;
  cert?: Buffer;
  key?: Buffer;
}

/** A file that may be replaced at any time. */
class WatchedFile {
  readonly path: string;
  readonly #what: string;
  #stamp = "";
  #content: Buffer;

  constructor(path: string, what: string) {
    this.path = path;
    this.#what = what;
    this.#content = this.#readFirst();
  }

  get content(): Buffer {
    return this.#content;
  }

  #readFirst(): Buffer {
    try {
      this.#stamp = stampOf(this.path);
      return readFileSync(this.path);
    } catch (error) {
      const problem = error instanceof Error ? error.message : String(error);
      throw new InvalidArgumentError(`the file of ${this.#what} cannot be read: ${problem}`, { cause: error });
    }
  }

  /** Reads the file again if it was replaced. If it cannot be read now, the old content stays. */
  refresh(): boolean {
    try {
      const stamp = stampOf(this.path);
      if (stamp === this.#stamp) return false;
      const content = readFileSync(this.path);
      this.#stamp = stamp;
      if (content.equals(this.#content)) return false;
      this.#content = content;
      return true;
    } catch {
      return false;
    }
  }
}

function stampOf(path: string): string {
  const { mtimeMs, ctimeMs, size, ino } = statSync(path);
  return `${mtimeMs} ${ctimeMs} ${size} ${ino}`;
}

/** All files of one client. */
export class Credentials {
  readonly #tls: Partial<Record<keyof TlsFiles, WatchedFile>> = {};
  readonly #token: WatchedFile | undefined;
  #lookedAt = 0;
  /** Rises when the TLS files have changed. */
  #generation = 0;

  constructor(tls: TlsFiles, tokenFile: string | undefined) {
    if ((tls.cert === undefined) !== (tls.key === undefined)) {
      throw new InvalidArgumentError("cert and key belong together: give both, or neither");
    }
    for (const what of ["ca", "cert", "key"] as const) {
      const path = tls[what];
      if (path !== undefined) this.#tls[what] = new WatchedFile(path, what);
    }
    this.#token = tokenFile === undefined ? undefined : new WatchedFile(tokenFile, "the bearer token");
    if (this.#token) bearer(this.#token);
  }

  /** Looks for changes, at most once a second. With `now` it looks in any case. True if the token changed. */
  refresh(now = false): boolean {
    const time = Date.now();
    if (!now && time >= this.#lookedAt && time - this.#lookedAt < LOOK_INTERVAL_MS) return false;
    this.#lookedAt = time;
    // All three are looked at: a new certificate comes with a new key.
    const changed = Object.values(this.#tls).map((file) => file.refresh());
    if (changed.includes(true)) this.#generation += 1;
    return this.#token?.refresh() ?? false;
  }

  get generation(): number {
    return this.#generation;
  }

  get tls(): TlsContents {
    const contents: TlsContents = {};
    for (const what of ["ca", "cert", "key"] as const) {
      const file = this.#tls[what];
      if (file) contents[what] = file.content;
    }
    return contents;
  }

  /** The header that names this client, if there is a token. */
  get authorization(): string | undefined {
    return this.#token && bearer(this.#token);
  }
}

function bearer(file: WatchedFile): string {
  const token = file.content.toString("utf8").trim();
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new InvalidArgumentError(
      `${file.path} has no bearer token: one line of printable ASCII characters without spaces is needed`,
    );
  }
  return `Bearer ${token}`;
}
