/**
 * One call and its copies. A call that gets no clear answer is sent again with the same request id, so several
 * copies of it may be on the way. This keeps account of what is known of them all.
 */
import { type LowkeyError, UnavailableError } from "./errors.js";
import { meaningOf } from "./reasons.js";
import { type Refusal, refusalError } from "./refusal.js";

/** What became of one copy: a refusal by a node, or no answer. */
export type CopyFailure =
  | { readonly kind: "refused"; readonly refusal: Refusal }
  | { readonly kind: "no-answer"; readonly problem: string; readonly sent: boolean };

/** The account of one call that changes something, or of one that does not. */
export class Copies {
  readonly #changesSomething: boolean;
  /** A copy was sent and not clearly answered: it may have been carried out, or may yet be. */
  #inDoubt = false;
  #last: CopyFailure = { kind: "no-answer", problem: "no answer in time", sent: false };

  constructor(changesSomething: boolean) {
    this.#changesSomething = changesSomething;
  }

  /** A copy was not done. Returns the error to tell, or `undefined` if the call is worth another copy. */
  failed(failure: CopyFailure): LowkeyError | undefined {
    const isFirstDoubt = this.#inDoubt;
    this.#last = failure;
    if (failure.kind === "no-answer") {
      this.#inDoubt ||= failure.sent && this.#changesSomething;
      return undefined;
    }
    const { retryable, outcomeUnknown } = meaningOf(failure.refusal.reason, failure.refusal.status);
    this.#inDoubt ||= outcomeUnknown && this.#changesSomething;
    if (retryable) return undefined;
    const error = refusalError(failure.refusal);
    error.inDoubt = isFirstDoubt;
    return error;
  }

  /** Whether a copy may have been carried out, or may yet be. */
  get inDoubt(): boolean {
    return this.#inDoubt;
  }

  /** The time is up: what the caller is told. */
  timeIsUp(): LowkeyError {
    const last = this.#last;
    if (last.kind === "no-answer") return new UnavailableError(last.problem, { outcomeUnknown: this.#inDoubt });
    const error = refusalError(last.refusal);
    if (!this.#inDoubt || error.outcomeUnknown) return error;
    // The last answer was that nothing was done. That does not hold for an earlier copy.
    const { reason, metadata: details, message } = last.refusal;
    return new UnavailableError(message, { reason, details, outcomeUnknown: true });
  }
}
