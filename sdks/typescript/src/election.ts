/** Leader election: a lock whose holder leads. */
import type { Client } from "./client.js";
import { LowkeyError } from "./errors.js";
import { LockGuard } from "./lock.js";
import { Backoff, requestId } from "./random.js";
import { sleep } from "./sleep.js";

/** A term of office: a {@link LockGuard} of the election's lock. Ends when it is resigned or lost. */
export class Leadership extends LockGuard {
  /** Changes the value that tells the others about the leader. */
  async proclaim(value: string): Promise<void> {
    await this.grant.inner.change("/v1/election/proclaim", {
      election: this.name,
      owner_id: this.grant.inner.owner,
      lease_id: this.leaseId,
      fencing_token: this.token,
      value,
      request_id: requestId(),
    });
  }

  /** Gives up the lead, and waits until that is done. */
  resign(): Promise<void> {
    return this.release();
  }
}

/** How {@link Client.elect} stands for election. */
export interface ElectOptions {
  /** What the others should know of the leader, its address say: at most 4096 bytes. */
  readonly value?: string | undefined;
  /** The time to live of each session: 10,000 ms if left out. */
  readonly ttlMs?: number | undefined;
  /** Ends the candidacy, or the lead. */
  readonly signal?: AbortSignal | undefined;
}

type Term<T> = { readonly isOver: true; readonly value: T } | { readonly isOver: false };

/** Campaigns until a term of office ends while it is still held. See {@link Client.elect}. */
export async function elect<T>(
  client: Client,
  name: string,
  options: ElectOptions,
  work: (lead: Leadership) => Promise<T> | T,
): Promise<T> {
  let backoff = new Backoff();
  for (;;) {
    options.signal?.throwIfAborted();
    try {
      await using session = await client.session({ ttlMs: options.ttlMs ?? 10_000, signal: options.signal });
      const { value, signal } = options;
      await using lead = await session.campaign(name, { value, signal });
      backoff = new Backoff();
      const term = await serve(lead, options.signal, work);
      if (term.isOver) return term.value;
    } catch (error) {
      options.signal?.throwIfAborted();
      // A lost session or a service that does not answer is a reason to begin anew, and nothing else is.
      if (!(error instanceof LowkeyError) || error instanceof WorkFailed || !isPassing(error)) throw unwrap(error);
    }
    await sleep(backoff.pause(), options.signal);
  }
}

/** The work threw while the lead was held. */
class WorkFailed extends LowkeyError {}

function unwrap(error: unknown): unknown {
  return error instanceof WorkFailed ? error.cause : error;
}

function isPassing(error: LowkeyError): boolean {
  return error.retryable || error.name === "SessionLostError" || error.reason === "WAIT_CANCELLED";
}

async function serve<T>(
  lead: Leadership,
  signal: AbortSignal | undefined,
  work: (lead: Leadership) => Promise<T> | T,
): Promise<Term<T>> {
  const resign = (): void => {
    void lead[Symbol.asyncDispose]();
  };
  if (signal?.aborted) resign();
  signal?.addEventListener("abort", resign, { once: true });
  try {
    const value = await work(lead);
    // A result that was reached after the lead was lost is not protected: another leads, or will.
    return lead.held || wasResigned(lead) ? { isOver: true, value } : { isOver: false };
  } catch (error) {
    if (lead.held || wasResigned(lead)) throw new WorkFailed("the work of a leader failed", { cause: error });
    return { isOver: false };
  } finally {
    signal?.removeEventListener("abort", resign);
  }
}

/** The work itself gave up the lead. */
function wasResigned(lead: Leadership): boolean {
  return lead.lossCause === "closed";
}
