package lowkey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"lowkey/lowkeypb"
)

// What went wrong, for [errors.Is]. Details are in an [*Error], a [*SessionLostError] or a [*LostError].
var (
	// ErrHeld: another lease holds the lock, now or for as long as you waited.
	ErrHeld = errors.New("lowkey: the lock is held")
	// ErrWaitTimeout: the lock was not granted within [Wait]. Such an error is ErrHeld, too.
	ErrWaitTimeout = errors.New("lowkey: the time to wait is over")
	// ErrSessionLost: the session is lost, and with it everything that it held.
	ErrSessionLost = errors.New("lowkey: the session is lost")
	// ErrLost: the lock is lost.
	ErrLost = errors.New("lowkey: the lock is lost")
	// ErrReleased is why the context of a guard ended that was released.
	ErrReleased = errors.New("lowkey: the lock was released")
	// ErrUnavailable: no node answered in time. [Error.OutcomeUnknown] tells whether it may have been done.
	ErrUnavailable = errors.New("lowkey: no node answered in time")
	// ErrWrongCluster: an endpoint belongs to another cluster than the one that the client began with.
	ErrWrongCluster = errors.New("lowkey: another cluster")
	// ErrInvalid: an argument is not valid. The message says what is allowed.
	ErrInvalid = errors.New("lowkey: an argument is not valid")
	// ErrCompacted: what happened since the position of a watch is no longer kept. List, then watch.
	ErrCompacted = errors.New("lowkey: the position is no longer kept")
	// ErrNotHeld: the lock that was to be released, or the lead that was to be used, is not held any more.
	ErrNotHeld = errors.New("lowkey: the lock is not held any more")
	// ErrDenied: the service does not know who you are, or does not permit it.
	ErrDenied = errors.New("lowkey: not permitted")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("lowkey: the client is closed")
)

// Error is why there is no good answer.
type Error struct {
	// Reason is the stable reason of the service, such as LOCK_HELD. It is empty if no node refused.
	Reason string
	// Message says it for a person.
	Message string
	// Metadata are the particulars for programs, as the service gave them.
	Metadata map[string]string
	// HeldBy is the holder of a lock that you do not get, as far as is known.
	HeldBy *HeldBy
	// RetryAfter is when asking again may help; 0 if nothing is known about that.
	RetryAfter time.Duration

	kind  error // one of the values above, or nil for a plain refusal
	cause error // such as the end of a context
	// The request was sent at least once, and may have been carried out.
	isSent bool
	// The last answer was a refusal, but an earlier copy of the same call may yet be carried out.
	inDoubt bool
}

// HeldBy is the holder of a lock.
type HeldBy struct {
	// Name is what is held: the lock itself, a subtree above it, or something below it.
	Name string
	// Owner is the holder, as it names itself.
	Owner string
	// LeaseID is the lease that holds it.
	LeaseID uint64
	// Token is the fencing token of its grant.
	Token uint64
	// Since is when it was granted, by the clock of the node that granted it: for display only.
	Since time.Time
	// Waiters is how many wait for it.
	Waiters uint64
}

// Error says what went wrong, for a person.
func (e *Error) Error() string {
	switch {
	case e.kind == ErrUnavailable && !e.isSent:
		return "lowkey: the service does not answer, nothing was done: " + e.Message
	case e.kind == ErrUnavailable && e.Reason != "":
		return "lowkey: " + e.Message + "; the request may have been carried out all the same"
	case e.kind == ErrUnavailable:
		return "lowkey: the service does not answer, and it may have been done: " + e.Message
	default:
		return "lowkey: " + e.Message
	}
}

// Unwrap gives what lies below, such as [context.Canceled].
func (e *Error) Unwrap() error { return e.cause }

// Is tells whether this is one of the Err values of this package.
func (e *Error) Is(target error) bool {
	if e.kind != nil && target == e.kind {
		return true
	}
	if e.kind == ErrUnavailable {
		return false
	}
	switch target {
	case ErrHeld:
		return e.Reason == reasonLockHeld || e.Reason == reasonWaitTimeout
	case ErrWaitTimeout:
		return e.Reason == reasonWaitTimeout
	case ErrCompacted:
		return e.Reason == reasonCompacted
	case ErrNotHeld:
		return isNotHeld(e.Reason)
	case ErrInvalid:
		return isInvalid(e.Reason)
	case ErrDenied:
		return e.Reason == reasonNoProof || e.Reason == reasonNotPermitted
	default:
		return false
	}
}

// Retryable tells whether the same call may succeed if it is made again. The client has already tried for as
// long as its time allowed.
func (e *Error) Retryable() bool {
	switch {
	case e.kind == ErrUnavailable:
		return true
	case e.kind != nil:
		return false
	case errors.Is(e, ErrHeld):
		return true
	default:
		return e.isTemporary()
	}
}

// isTemporary tells whether the service itself says that it may answer otherwise soon.
func (e *Error) isTemporary() bool {
	next := nextAfter(e.Reason)
	return e.kind == nil && (next == retry || next == retrySameID)
}

// OutcomeUnknown tells whether the call may have been carried out although it failed.
func (e *Error) OutcomeUnknown() bool {
	if e.kind == ErrUnavailable || e.cause != nil {
		return e.isSent
	}
	next := nextAfter(e.Reason)
	return e.kind == nil && (next == retrySameID || next == unknown)
}

// mayHaveBeenDone tells whether the call, or a copy of it, may have been carried out or may yet be. A caller that
// does not want the effect must undo it.
func (e *Error) mayHaveBeenDone() bool {
	return e.inDoubt || e.OutcomeUnknown()
}

// ofOneCopy is the same error for a call of which another copy may have been carried out, no matter what became
// of this one.
func (e *Error) ofOneCopy() *Error {
	if e.OutcomeUnknown() {
		return e
	}
	// What the error says of this copy does not hold for the other.
	message := strings.ReplaceAll(e.Message, "; nothing was done", "")
	return &Error{
		kind: ErrUnavailable, isSent: true, inDoubt: e.inDoubt,
		Reason: e.Reason, Message: message, Metadata: e.Metadata,
	}
}

// isNotHeld tells whether the caller does not, or no longer, hold the lock.
func isNotHeld(reason string) bool {
	switch reason {
	case reasonLockNotFound, reasonNotOwner, reasonStaleToken, reasonLeaseNotFound:
		return true
	default:
		return false
	}
}

func unavailable(message string, isSent bool) *Error {
	return &Error{kind: ErrUnavailable, Message: message, isSent: isSent}
}

func invalid(format string, args ...any) *Error {
	return &Error{kind: ErrInvalid, Message: fmt.Sprintf(format, args...)}
}

func wrongAnswer() *Error {
	return unavailable("the node answered another question", true)
}

// cancelled is the error of a call whose caller's context has ended.
func cancelled(ctx context.Context, isSent bool) *Error {
	cause := ctx.Err()
	if why := context.Cause(ctx); why != nil && why != cause {
		cause = fmt.Errorf("%w: %w", cause, why)
	}
	return &Error{Message: cause.Error(), cause: cause, isSent: isSent, inDoubt: isSent}
}

// refusal is the service's own error.
func refusal(reason, message string, metadata map[string]string, retryAfter time.Duration) *Error {
	refused := &Error{Reason: reason, Message: message, Metadata: metadata, RetryAfter: retryAfter}
	if reason == reasonLockHeld || reason == reasonWaitTimeout {
		refused.HeldBy = heldBy(metadata)
	}
	return refused
}

func heldBy(metadata map[string]string) *HeldBy {
	name := metadata["held_name"]
	if name == "" {
		name = metadata["lock_name"]
	}
	if name == "" || metadata["owner_id"] == "" {
		return nil
	}
	number := func(key string) uint64 {
		// What is not a number is not known, which is 0.
		number, _ := strconv.ParseUint(metadata[key], 10, 64)
		return number
	}
	held := &HeldBy{
		Name: name, Owner: metadata["owner_id"], LeaseID: number("lease_id"), Token: number("fencing_token"),
		Waiters: number("waiters"),
	}
	if since := number("since_unix_ms"); since > 0 {
		held.Since = time.UnixMilli(int64(since))
	}
	return held
}

// fromSession reads the error of a call on the session stream.
func fromSession(e *lowkeypb.SessionError) *Error {
	retryAfter := time.Duration(min(e.GetRetryAfterMs(), 3_600_000)) * time.Millisecond
	return refusal(e.GetReason(), e.GetMessage(), maps.Clone(e.GetMetadata()), retryAfter)
}

// fromStatus reads the error of a single call. Without particulars of the service it comes from the transport.
func fromStatus(err error, isSent bool) *Error {
	known, _ := status.FromError(err)
	var info *errdetails.ErrorInfo
	var retryAfter time.Duration
	for _, detail := range known.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == "lowkey" {
				info = detail
			}
		case *errdetails.RetryInfo:
			retryAfter = detail.GetRetryDelay().AsDuration()
		}
	}
	if info == nil {
		return fromTransport(known, isSent)
	}
	return refusal(info.GetReason(), known.Message(), info.GetMetadata(), retryAfter)
}

// LossCause is why a session or a lock was lost.
type LossCause int

const (
	// Expired: no renewal was acknowledged in time, by this client's own clock.
	Expired LossCause = iota + 1
	// Gone: the service said that the lease is gone. It ran out there, or was revoked.
	Gone
	// Closed: this client closed it.
	Closed
	// ReleasedElsewhere: only for a lock whose session goes on. Another client released it.
	ReleasedElsewhere
	// HeldTooLong: only for a lock whose session goes on. It was held for as long as [AtMost] allows.
	HeldTooLong
)

// String says it for a person.
func (c LossCause) String() string {
	switch c {
	case Expired:
		return "no renewal was acknowledged in time"
	case Gone:
		return "the lease is gone: it ran out, or was revoked"
	case Closed:
		return "it was closed"
	case ReleasedElsewhere:
		return "somebody else released it"
	case HeldTooLong:
		return "it was held for as long as it may be"
	default:
		return "for no known cause"
	}
}

// SessionLostError says why a session is lost. It is ErrSessionLost.
type SessionLostError struct {
	// Cause is why.
	Cause LossCause
}

// Error says it for a person.
func (e *SessionLostError) Error() string { return "lowkey: the session is lost: " + e.Cause.String() }

// Is tells whether the target is ErrSessionLost.
func (e *SessionLostError) Is(target error) bool { return target == ErrSessionLost }

// LostError says that a lock was lost while it was in use. It is ErrLost.
//
// It does not mean that nothing was written meanwhile: only the resource that is written to knows.
type LostError struct {
	// Name is the lock.
	Name string
	// Token is its fencing token. What was written with it stands until a higher one is seen.
	Token uint64
	// Cause is why.
	Cause LossCause
}

// Error says it for a person.
func (e *LostError) Error() string {
	return fmt.Sprintf("lowkey: lock %s (token %d) is lost: %s", e.Name, e.Token, e.Cause)
}

// Is tells whether the target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }
