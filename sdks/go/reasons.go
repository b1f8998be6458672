package lowkey

import "strings"

// next is what a client that meets a reason may do about it.
type next int

const (
	// giveUp: nothing was done, and the same request would be refused again until something else changes.
	giveUp next = iota
	// retry: nothing was done. The same request may succeed later or on another node.
	retry
	// retrySameID: it may have been done. Asking again is safe with the same request id only.
	retrySameID
	// unknown: it may have been done, and asking again is likely to meet the same fault.
	unknown
)

// The stable reasons that this package decides by.
const (
	reasonLeaseNotFound = "LEASE_NOT_FOUND"
	reasonLockNotFound  = "LOCK_NOT_FOUND"
	reasonLockHeld      = "LOCK_HELD"
	reasonWaitTimeout   = "WAIT_TIMEOUT"
	reasonStaleToken    = "STALE_TOKEN"
	reasonNotOwner      = "NOT_OWNER"
	reasonCompacted     = "COMPACTED"
	reasonNodeRemoved   = "NODE_REMOVED"
	reasonNodeStopping  = "NODE_STOPPING"
	reasonNodeDiverged  = "NODE_DIVERGED"
	reasonNoLeader      = "NO_LEADER"
	reasonNoQuorum      = "NO_QUORUM"
	reasonLimitStreams  = "LIMIT_STREAMS"
	reasonLimitMemory   = "LIMIT_MEMORY"
	reasonNoSuchRoute   = "NO_SUCH_ROUTE"
	reasonNoProof       = "UNAUTHENTICATED"
	reasonNotPermitted  = "PERMISSION_DENIED"
	reasonInternal      = "INTERNAL"
)

// reasons are all reasons that are not final refusals without effect.
var reasons = map[string]next{
	reasonNodeRemoved:   retry,
	reasonNodeStopping:  retry,
	reasonNodeDiverged:  retry,
	reasonNoLeader:      retry,
	reasonNoQuorum:      retry,
	"UPGRADE_UNDER_WAY": retry,
	"RECOVERING":        retry,
	"OUTCOME_UNKNOWN":   retrySameID,
	"LIMIT_BUSY":        retry,
	"LIMIT_IN_FLIGHT":   retry,
	reasonLimitStreams:  retry,
	reasonLimitMemory:   retry,
	"LIMIT_CONNECTIONS": retry,
	"LIMIT_DISK":        retry,
	"LIMIT_LOGINS":      retry,
	"ACCESS_UNKNOWN":    retry,
	reasonInternal:      unknown,
}

// finalReasons are the reasons that are final, and without effect. Those of fields begin with INVALID_.
var finalReasons = map[string]bool{
	reasonLeaseNotFound: true, reasonLockNotFound: true, reasonLockHeld: true, reasonWaitTimeout: true,
	"WAIT_CANCELLED": true, reasonStaleToken: true, "ALREADY_HELD": true, "NODE_NOT_FOUND": true,
	"QUORUM_AT_RISK": true, "TRANSFER_FAILED": true, "NODE_NAME_TAKEN": true, "NODE_TOO_OLD": true,
	reasonNotOwner: true, reasonCompacted: true, "LIMIT_LEASES": true, "LIMIT_MEMBERS": true,
	"LIMIT_LOCKS_PER_LEASE": true, "LIMIT_WAITERS": true, "UNKNOWN_FIELD": true, "FOREIGN_ORIGIN": true,
	"FOREIGN_HOST": true, reasonNoSuchRoute: true, "METHOD_NOT_ALLOWED": true, "BODY_TOO_LARGE": true,
	reasonNoProof: true, reasonNotPermitted: true, "PRINCIPAL_NOT_FOUND": true, "ACCESS_TOKEN_NOT_FOUND": true,
	"PROOF_TAKEN": true, "ADMIN_NEEDED": true, "LIMIT_ACCESS": true,
}

// nextAfter tells what to do after a refusal. A newer node may have reasons that are not in the table: all that
// is certain then is that the outcome is not known here.
func nextAfter(reason string) next {
	if next, ok := reasons[reason]; ok {
		return next
	}
	if finalReasons[reason] || isInvalid(reason) {
		return giveUp
	}
	return unknown
}

func isInvalid(reason string) bool {
	return strings.HasPrefix(reason, "INVALID_")
}
