/** The rules that all SDKs share, as the vectors of `conformance/` have them. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { Beliefs } from "../src/beliefs.js";
import { ASK_AGAIN_MS } from "../src/cluster.js";
import { Doors } from "../src/door.js";
import { type LowkeyError, RefusedError } from "../src/errors.js";
import { Holds, mix } from "../src/holds.js";
import { pauseMs } from "../src/random.js";
import { meaningOf } from "../src/reasons.js";
import { readRefusal, type Refusal, refusalError } from "../src/refusal.js";
import { Copies, type CopyFailure } from "../src/retry.js";
import { heldUntil, Validity, validUntil, validUntilAfterWait } from "../src/validity.js";
import { PROJECT } from "./cluster.js";

function vectors(name: string): unknown {
  return JSON.parse(readFileSync(join(PROJECT, "conformance/vectors", name), "utf8"));
}

interface BeliefStep {
  op: string;
  first_sent_ns: string;
  answered_ns: string;
  at_ns: string;
  ttl_seconds: number;
  waited_ms: number;
  max_hold_seconds: number;
  expect_ns: string;
  expect: boolean;
}

describe("belief", () => {
  let limit: bigint | undefined;
  const { cases } = vectors("belief.json") as { cases: { name: string; steps: BeliefStep[] }[] };
  for (const { name, steps } of cases) {
    test(name, () => {
      let validity = new Validity(0n, 1n);
      limit = undefined;
      for (const step of steps) validity = follow(validity, step);
    });
  }

  function follow(validity: Validity, step: BeliefStep): Validity {
    const ttl = BigInt(step.op.startsWith("made") ? step.ttl_seconds : 0);
    switch (step.op) {
      case "made":
        return new Validity(validUntil(BigInt(step.first_sent_ns), ttl), ttl);
      case "made_after_wait":
        return new Validity(validUntilAfterWait(BigInt(step.first_sent_ns), BigInt(step.waited_ms), ttl), ttl);
      case "renewed":
        validity.renewed(BigInt(step.first_sent_ns), BigInt(step.answered_ns));
        return validity;
      case "gone":
      case "closed":
        validity.end();
        return validity;
      case "limited":
        limit = heldUntil(BigInt(step.first_sent_ns), BigInt(step.waited_ms), BigInt(step.max_hold_seconds));
        return validity;
      case "acquired":
        return validity;
      case "held": {
        const at = BigInt(step.at_ns);
        assert.equal(validity.holdsAt(at) && (limit === undefined || at < limit), step.expect);
        return validity;
      }
      case "valid_until":
        assert.equal(validity.untilNanos, BigInt(step.expect_ns));
        return validity;
      default:
        throw new Error(`a step that is not known: ${step.op}`);
    }
  }
});

interface Meaning {
  reason: string;
  http_status: number;
  retryable: boolean;
  outcome_unknown: boolean;
}

interface AnswerCase {
  name: string;
  status: number;
  retry_after: string | null;
  body: string;
  expect: {
    reason: string | null;
    retryable: boolean;
    outcome_unknown: boolean;
    held_by: { name: string; owner: string; lease_id: string; fencing_token: string; waiters: number } | null;
  };
}

describe("errors", () => {
  const { reasons, answers } = vectors("errors.json") as { reasons: Meaning[]; answers: AnswerCase[] };

  test("each reason means the same everywhere", () => {
    for (const { reason, http_status, retryable, outcome_unknown } of reasons) {
      assert.deepEqual({ reason, ...meaningOf(reason, http_status) }, { reason, retryable, outcomeUnknown: outcome_unknown });
    }
  });

  for (const { name, status, retry_after, body, expect } of answers) {
    test(name, () => {
      const error = refusalError(readRefusal(status, body, retry_after ?? undefined));
      assert.equal(error.reason ?? null, expect.reason);
      assert.equal(error.retryable, expect.retryable);
      assert.equal(error.outcomeUnknown, expect.outcome_unknown);
      const { heldBy } = error as LowkeyError & { heldBy?: { name: string; owner: string; leaseId: bigint; token: bigint; waiters: number } };
      const found = heldBy && {
        name: heldBy.name,
        owner: heldBy.owner,
        lease_id: heldBy.leaseId.toString(),
        fencing_token: heldBy.token.toString(),
        waiters: heldBy.waiters,
      };
      assert.deepEqual(found ?? null, expect.held_by);
    });
  }
});

interface Judgement {
  name: string;
  believed: string[];
  now: string[];
  given_up: string[];
  asking: string[];
  grants: { name: string; token: string; id: string }[];
  lost: string[];
  release: { name: string; token: string }[];
}

describe("holds", () => {
  const all = vectors("holds.json") as {
    mix: { token: string; mixed: string }[];
    holds: { tokens: string[]; count: number; digest: string }[];
    judge: Judgement[];
  };

  test("tokens are spread over 64 bits as everywhere", () => {
    for (const { token, mixed } of all.mix) assert.equal(mix(BigInt(token)).toString(), mixed);
  });

  test("count and digest", () => {
    for (const { tokens, count, digest } of all.holds) {
      const holds = new Holds();
      for (const token of tokens) holds.add(BigInt(token));
      assert.deepEqual(holds.toWire(), { count, digest });
    }
  });

  for (const one of all.judge) {
    test(one.name, () => {
      const beliefs = new Beliefs<string>();
      for (const token of one.now) beliefs.add(BigInt(token), token);
      for (const id of one.given_up) beliefs.giveUp(id);
      const doors = new Doors<string>();
      const signal = new AbortController().signal;
      for (const name of one.asking) void doors.enter(name, { mode: "exclusive", scope: "name" }, false, signal);
      const grants = one.grants.map(({ name, token, id }) => ({ name, token: BigInt(token), acquireRequestId: id }));
      const verdict = beliefs.judge(one.believed.map(BigInt), grants);
      assert.deepEqual(verdict.lost, one.lost);
      const released = verdict.orphans.filter(({ name }) => doors.tryEnter(name) !== undefined);
      assert.deepEqual(released.map(({ name, token }) => ({ name, token: token.toString() })), one.release);
    });
  }
});

interface CallCase {
  name: string;
  outcomes: string[];
  expect: { told: string; reason?: string; outcome_unknown?: boolean; undo: boolean };
}

describe("retry", () => {
  const all = vectors("retry.json") as {
    pauses: { attempt: number; share: number; hint_ms: number; expect_us: number }[];
    calls: CallCase[];
    times: { ask_again_within_ms: number };
  };

  test("full jitter", () => {
    for (const { attempt, share, hint_ms, expect_us } of all.pauses) {
      assert.equal(Math.round(pauseMs(attempt, share, hint_ms) * 1000), expect_us);
    }
  });

  test("a wait is asked for again in time", () => {
    assert.ok(ASK_AGAIN_MS < all.times.ask_again_within_ms);
  });

  for (const { name, outcomes, expect } of all.calls) {
    test(name, () => {
      const copies = new Copies(true);
      let error: LowkeyError | undefined;
      for (const outcome of outcomes) {
        assert.equal(error, undefined, "nothing follows a final answer");
        if (outcome === "DONE") {
          assert.equal(expect.told, "DONE");
          return;
        }
        error = copies.failed(failure(outcome));
      }
      error ??= copies.timeIsUp();
      assert.equal(error instanceof RefusedError ? "REFUSED" : "UNAVAILABLE", expect.told);
      if (expect.reason !== undefined) assert.equal(error.reason, expect.reason);
      assert.equal(error.outcomeUnknown, expect.outcome_unknown);
      assert.equal(error.mayHaveBeenDone, expect.undo);
    });
  }

  function failure(outcome: string): CopyFailure {
    if (outcome === "NO_ANSWER") return { kind: "no-answer", problem: "silence", sent: true };
    if (outcome === "REFUSED_CONNECTION") return { kind: "no-answer", problem: "nobody there", sent: false };
    const refusal: Refusal = { status: 503, reason: outcome, message: outcome, metadata: {}, hintMs: 0 };
    return { kind: "refused", refusal: outcome === "LOCK_HELD" ? { ...refusal, status: 409 } : refusal };
  }
});
