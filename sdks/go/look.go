package lowkey

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"lowkey/lowkeypb"
)

// Holder is one grant of a lock.
type Holder struct {
	// Owner is the holder, as it names itself.
	Owner string
	// LeaseID is the lease that holds the lock.
	LeaseID uint64
	// Token is the grant's fencing token.
	Token uint64
	// Shared tells that it is held together with others, Subtree that everything below the name is covered.
	Shared, Subtree bool
	// Value is the text that was given with the acquire.
	Value string
	// Since is when it was granted, by the clock of the node that granted it: for display only.
	Since time.Time
}

func newHolder(from *lowkeypb.LockHolder) *Holder {
	if from == nil {
		return nil
	}
	return &Holder{
		Owner: from.GetOwnerId(), LeaseID: from.GetLeaseId(), Token: from.GetFencingToken(), Value: from.GetValue(),
		Shared: from.GetMode() == lowkeypb.Mode_SHARED, Subtree: from.GetScope() == lowkeypb.Scope_SUBTREE,
		Since: time.UnixMilli(from.GetSinceUnixMs()),
	}
}

// LockState is who holds a lock, and how many wait for it.
type LockState struct {
	// Name is the lock.
	Name string
	// Holders are nobody, one, or several that share it: the first 1,000, or the first 10 in a list.
	Holders []Holder
	// HolderCount and WaiterCount are how many hold it, and how many wait for it.
	HolderCount, WaiterCount uint32
	// CoveredBy is the name above it that is held with its subtree, if nobody holds the name itself. The lock is
	// free if it has neither holders nor this.
	CoveredBy string
	// Revision is the revision at which this was true.
	Revision uint64
}

func newLockState(from *lowkeypb.GetLockResponse) *LockState {
	lock := &LockState{
		Name: from.GetLockName(), HolderCount: from.GetHolderCount(), WaiterCount: from.GetWaiterCount(),
		CoveredBy: from.GetCoveredBy(), Revision: from.GetRevision(),
	}
	for _, holder := range from.GetHolders() {
		lock.Holders = append(lock.Holders, *newHolder(holder))
	}
	return lock
}

// Get tells who holds a lock. A name that nobody holds is no error.
func (c *Client) Get(ctx context.Context, name string) (*LockState, error) {
	request := &lowkeypb.GetLockRequest{LockName: name}
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_GetLock{GetLock: request}}
	answer, err := c.link.call(ctx, call, c.callTimeout)
	if err != nil {
		return nil, err
	}
	if answer.GetGetLock() == nil {
		return nil, wrongAnswer()
	}
	return newLockState(answer.GetGetLock()), nil
}

// List tells which locks are held or waited for whose names begin with the prefix. The prefix is plain text: "a/b"
// finds "a/bc" too. It also returns the revision to watch from to miss nothing after this: see [From].
func (c *Client) List(ctx context.Context, prefix string) (locks []LockState, watchFrom uint64, err error) {
	request := &lowkeypb.ListLocksRequest{Prefix: prefix, PageSize: 1000}
	for {
		page, err := single(ctx, c, func(ctx context.Context, at *grpc.ClientConn, options ...grpc.CallOption) (*lowkeypb.ListLocksResponse, error) {
			return lowkeypb.NewLockServiceClient(at).ListLocks(ctx, request, options...)
		})
		if err != nil {
			return nil, 0, err
		}
		if request.GetPageToken() == "" {
			watchFrom = page.GetWatchFrom()
		}
		for _, lock := range page.GetLocks() {
			locks = append(locks, *newLockState(lock))
		}
		if page.GetNextPageToken() == "" {
			return locks, watchFrom, nil
		}
		request.PageToken = page.GetNextPageToken()
	}
}

// CheckToken tells whether a token is a current one of a lock. What is true now may be over when the answer
// arrives: comparing tokens at the resource is the stronger check.
func (c *Client) CheckToken(ctx context.Context, name string, token uint64) (bool, error) {
	answer, err := single(ctx, c, func(ctx context.Context, at *grpc.ClientConn, options ...grpc.CallOption) (*lowkeypb.CheckTokenResponse, error) {
		request := &lowkeypb.CheckTokenRequest{LockName: name, FencingToken: token}
		return lowkeypb.NewLockServiceClient(at).CheckToken(ctx, request, options...)
	})
	return answer.GetCurrent(), err
}

// ForceRelease releases a lock that somebody else holds. The numbers, as [Client.Get] tells them, make sure that
// no other grant is meant. Events name this client's owner as the actor.
//
// The holder learns of it at once if its stream is up, and with its next renewal otherwise. It may act until then.
func (c *Client) ForceRelease(ctx context.Context, name string, leaseID, token uint64) error {
	// On the wire 0 stands for "any grant of this lease".
	if token == 0 {
		return invalid("0 is no fencing token: the grant's token is needed, from 1")
	}
	call := releaseByToken(name, leaseID, token)
	call.GetReleaseLock().Actor = c.owner
	if _, err := c.link.call(ctx, call, c.callTimeout); err != nil {
		return err
	}
	return nil
}

// RevokeLease ends a lease of another session, with everything that it holds and waits for. The owner must be
// named, so that no other lease can be meant. Events name this client's owner as the actor.
func (c *Client) RevokeLease(ctx context.Context, leaseID uint64, owner string) error {
	call := revocation(leaseID, owner)
	call.GetRevokeLease().Actor = c.owner
	if _, err := c.link.call(ctx, call, c.callTimeout); err != nil {
		return err
	}
	return nil
}
