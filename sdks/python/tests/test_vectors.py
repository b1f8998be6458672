"""The vectors of the repository: the same for every SDK."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lowkey._belief import (
    Beliefs,
    GrantView,
    Holds,
    LossCause,
    Validity,
    held_until,
    mix,
    valid_until,
    valid_until_after_wait,
)
from lowkey._clock import now_ns
from lowkey._link import _ADVISORY, Call, Doubtful, _Attempts
from lowkey._retry import Backoff
from lowkey.errors import ApiError, LowkeyError, Refused, Unavailable, parse_api_error

VECTORS = Path(__file__).resolve().parents[3] / "conformance" / "vectors"


def load(name: str, part: str) -> list[Any]:
    found: list[Any] = json.loads((VECTORS / f"{name}.json").read_text())[part]
    assert found
    return found


def named(case: Any) -> str:
    return str(case.get("name", ""))


class Lease:
    """One lease on a clock that the vector moves."""

    def __init__(self) -> None:
        self.now = 0
        self.validity = Validity(1, 0)
        self.limit_ns: int | None = None

    def step(self, step: dict[str, Any]) -> None:
        self.now = max(self.now, int(step.get("at_ns", step.get("answered_ns", 0))))
        op = step["op"]
        if op.startswith("made"):
            sent, ttl = int(step["first_sent_ns"]), step["ttl_seconds"]
            self.now = sent
            until = valid_until(sent, ttl)
            if op == "made_after_wait":
                until = valid_until_after_wait(sent, step["waited_ms"], ttl)
            self.validity = Validity(ttl, until, clock=lambda: self.now)
            self.limit_ns = None
        elif op == "limited":
            sent, limit = int(step["first_sent_ns"]), step["max_hold_seconds"]
            self.limit_ns = held_until(sent, step["waited_ms"], limit)
        elif op == "renewed":
            self.validity.renewed(int(step["first_sent_ns"]))
        elif op == "gone":
            self.validity.end(LossCause.GONE)
        elif op == "closed":
            self.validity.end(LossCause.CLOSED)
        elif op == "held":
            is_in_time = self.limit_ns is None or self.now < self.limit_ns
            assert (self.validity.is_valid() and is_in_time) is step["expect"], step
        elif op == "valid_until":
            assert self.validity.valid_until_ns == int(step["expect_ns"]), step
        else:
            assert op == "acquired", step


@pytest.mark.parametrize("case", load("belief", "cases"), ids=named)
def test_belief(case: Any) -> None:
    lease = Lease()
    for step in case["steps"]:
        lease.step(step)


@pytest.mark.parametrize("row", load("errors", "reasons"), ids=lambda row: str(row["reason"]))
def test_what_a_reason_means(row: Any) -> None:
    error = ApiError(row["http_status"], row["reason"], "")
    assert error.retryable is row["retryable"]
    assert error.outcome_unknown is row["outcome_unknown"]


@pytest.mark.parametrize("case", load("errors", "answers"), ids=named)
def test_what_an_answer_means(case: Any) -> None:
    expect = case["expect"]
    if case["status"] == 0:
        attempts = _Attempts(Call("POST", "/", {}), now_ns())
        attempts.no_answer("silence")
        error: Any = attempts.overdue().error
    else:
        error = parse_api_error(case["status"], case["body"].encode(), case["retry_after"])
    assert error.reason == expect["reason"]
    assert error.retryable is expect["retryable"]
    assert error.outcome_unknown is expect["outcome_unknown"]
    if expect["held_by"] is not None:
        held_by = error.held_by()
        wanted = expect["held_by"]
        assert (held_by.name, held_by.owner) == (wanted["name"], wanted["owner"])
        assert held_by.fencing_token == int(wanted["fencing_token"])
        assert (held_by.lease_id, held_by.waiters) == (int(wanted["lease_id"]), wanted["waiters"])


@pytest.mark.parametrize("case", load("retry", "pauses"))
def test_pauses(case: Any) -> None:
    backoff = Backoff()
    for _ in range(case["attempt"]):
        backoff.pause()
    pause = backoff.pause(case["hint_ms"] / 1000, case["share"])
    assert round(pause * 1e6) == case["expect_us"]


@pytest.mark.parametrize("case", load("retry", "calls"), ids=named)
def test_what_a_caller_is_told(case: Any) -> None:
    statuses = {row["reason"]: row["http_status"] for row in load("errors", "reasons")}
    attempts = _Attempts(Call("POST", "/", {}), now_ns() + 10**12)
    told: LowkeyError | None = None
    undo = False
    try:
        for outcome in case["outcomes"]:
            if outcome == "DONE":
                break
            if outcome == "REFUSED_CONNECTION":
                attempts.not_sent("refused")
            elif outcome == "NO_ANSWER":
                attempts.no_answer("silence")
            else:
                attempts.refused(ApiError(statuses[outcome], outcome, ""), 0, False)
        else:
            raise attempts.overdue()
    except Doubtful as doubtful:
        told, undo = doubtful.error, doubtful.may_have_been_done
    expect = case["expect"]
    assert undo is expect["undo"]
    if expect["told"] == "DONE":
        assert told is None
        return
    assert told is not None
    assert told.outcome_unknown is expect["outcome_unknown"]
    if expect["told"] == "UNAVAILABLE":
        assert isinstance(told, Unavailable)
    else:
        assert told.reason == expect["reason"]
        assert not isinstance(told, Unavailable)
        assert isinstance(told, Refused) or told.reason in ("LOCK_HELD", "WAIT_TIMEOUT")


@pytest.mark.parametrize("case", load("retry", "fields"))
def test_which_fields_may_be_left_out(case: Any) -> None:
    paths = {
        "renew": "/v1/lease/renew",
        "release": "/v1/lock/release",
        "acquire": "/v1/lock/acquire",
    }
    is_advice = (paths[case["call"]], case["field"]) in _ADVISORY
    assert is_advice is (case["action"] == "repeat_without")


@pytest.mark.parametrize("case", load("holds", "mix"))
def test_mix(case: Any) -> None:
    assert mix(int(case["token"])) == int(case["mixed"])


@pytest.mark.parametrize("case", load("holds", "holds"))
def test_holds(case: Any) -> None:
    beliefs = Beliefs()
    for token in case["tokens"]:
        beliefs.add(int(token))
    beliefs.add(10**15)
    beliefs.remove(10**15)
    assert beliefs.holds() == Holds(case["count"], int(case["digest"]))


@pytest.mark.parametrize("case", load("holds", "judge"), ids=named)
def test_judge(case: Any) -> None:
    beliefs = Beliefs()
    for token in case["now"]:
        beliefs.add(int(token))
    for acquire_id in case["given_up"]:
        beliefs.give_up(acquire_id)
    grants = [GrantView(g["name"], int(g["token"]), g["id"]) for g in case["grants"]]
    believed = [int(token) for token in case["believed"]]
    verdict = beliefs.judge(believed, grants, lambda name: name in case["asking"])
    assert verdict.lost == [int(token) for token in case["lost"]]
    released = [{"name": g.name, "token": str(g.token)} for g in verdict.orphans]
    assert released == case["release"]


def test_no_answer_arrives_between_the_question_and_the_mark() -> None:
    """A renewal that races with the end of belief does not make it flicker."""
    for _ in range(200):
        now = [0]
        validity = Validity(1, 100, clock=lambda now=now: now[0])  # type: ignore[misc]

        async def race(validity: Validity = validity, now: list[int] = now) -> None:
            loop = asyncio.get_running_loop()
            answer = loop.run_in_executor(None, validity.renewed, 50)
            now[0] = 100
            seen = [validity.is_valid() for _ in range(50)]
            await answer
            seen.append(validity.is_valid())
            first_no = seen.index(False) if False in seen else len(seen)
            assert not any(seen[first_no:])

        asyncio.run(race())
