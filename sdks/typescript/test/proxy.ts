/** A proxy before a real node, which loses, delays and refuses what a test wants. */
import * as http from "node:http";
import * as https from "node:https";
import type { AddressInfo, Socket } from "node:net";

/** What becomes of a request: it is passed on, passed on without an answer, held up, or answered by the proxy. */
export type Fate = "pass" | "lose-answer" | "lose-request" | Promise<unknown> | { status: number; body: unknown };

export interface SeenRequest {
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly headers: http.IncomingHttpHeaders;
}

export class Proxy implements AsyncDisposable {
  readonly #server: http.Server;
  readonly #target: () => string;
  readonly #sockets = new Set<Socket>();
  readonly #scheme: string;
  /** What becomes of a request. */
  fate: (request: SeenRequest) => Fate = () => "pass";
  readonly seen: SeenRequest[] = [];

  private constructor(target: () => string, tls: https.ServerOptions | undefined) {
    this.#target = target;
    const handle = (request: http.IncomingMessage, response: http.ServerResponse): void => {
      void this.#handle(request, response);
    };
    this.#server = tls ? https.createServer(tls, handle) : http.createServer(handle);
    this.#scheme = tls ? "https" : "http";
    this.#server.on("connection", (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  static async start(target: () => string, tls?: https.ServerOptions): Promise<Proxy> {
    const proxy = new Proxy(target, tls);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get url(): string {
    const { port } = this.#server.address() as AddressInfo;
    return `${this.#scheme}://127.0.0.1:${port}`;
  }

  /** How many connections there are. */
  get connections(): number {
    return this.#sockets.size;
  }

  /** Uses other certificates from now on. */
  setTls(tls: https.ServerOptions): void {
    (this.#server as https.Server).setSecureContext(tls);
  }

  /** Breaks all connections. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async #handle(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks);
    const body = text.length > 0 ? (JSON.parse(text.toString()) as Record<string, unknown>) : {};
    const seen = { path: request.url ?? "", body, headers: request.headers };
    this.seen.push(seen);
    const fate = this.fate(seen);
    if (typeof fate === "object" && "status" in fate) {
      response.writeHead(fate.status, { "lowkey-cluster": this.clusterId ?? "" }).end(JSON.stringify(fate.body));
      return;
    }
    if (fate === "lose-request") {
      request.socket.destroy();
      return;
    }
    const url = new URL(request.url ?? "", this.#target());
    const headers = { ...request.headers, host: url.host };
    const passed = http.request(url, { method: request.method, headers }, (answer) => {
      void Promise.resolve(fate).then(() => {
        if (fate === "lose-answer") {
          answer.resume();
          request.socket.destroy();
          return;
        }
        this.clusterId = answer.headers["lowkey-cluster"] as string;
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        response.flushHeaders();
        answer.pipe(response);
      });
    });
    passed.on("error", () => request.socket.destroy());
    response.on("close", () => passed.destroy());
    passed.end(text);
  }

  /** The cluster behind it, once it has answered. */
  clusterId: string | undefined;

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
