// Package lowkeyfence lets a database refuse writes of a holder whose lock is gone.
//
// The lock is not the safety mechanism; the check at the resource is. A resource keeps two marks: the highest
// exclusive and the highest shared token that it accepted. An exclusive token must be at least both marks, a shared
// one at least the exclusive mark. What is accepted raises its own mark, in the same transaction as the write.
//
// It works with any driver of database/sql for PostgreSQL 13 and newer, and for SQLite 3.32 and newer:
//
//	err := lowkeyfence.Postgres.Install(ctx, db) // once; or psql with what `lowkey fence sql postgres` prints
//	…
//	fence := lowkeyfence.Of("accounts", guard)
//	err = lowkeyfence.Postgres.Write(ctx, db, fence, func(tx *sql.Conn) error {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7")
//		return err
//	})
//	if errors.Is(err, lowkeyfence.ErrRefused) {
//		// Another holder was there since: stop, do not retry.
//	}
//
// Nothing here talks to the lock service.
package lowkeyfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode"

	"lowkey"
)

// ErrRefused says that the resource has accepted a higher token: the lock is gone. Stop, and do not retry.
// [*RefusedError] has the details.
var ErrRefused = errors.New("lowkeyfence: your lock is gone: stop, do not retry")

// RefusedError is a refusal. It is ErrRefused. Nothing was written.
type RefusedError struct {
	// Fence is what was presented.
	Fence Fence
	// Cause is what the database said.
	Cause error
}

// Error says it for a person.
func (e *RefusedError) Error() string {
	mode := "exclusive"
	if e.Fence.Shared {
		mode = "shared"
	}
	return fmt.Sprintf("lowkeyfence: %s refused the %s token %d: %v", e.Fence.Resource, mode, e.Fence.Token, e.Cause)
}

// Is tells whether the target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Unwrap gives the error of the database.
func (e *RefusedError) Unwrap() error { return e.Cause }

// Fence is what a holder presents to a resource.
type Fence struct {
	// Resource is all that is written under the same lock, or under locks of one path: 1 to 512 bytes. Tokens are
	// compared within one resource only.
	Resource string
	// Token is the fencing token.
	Token uint64
	// Shared tells that the lock is held in shared mode.
	Shared bool
}

// Of is what the holder of a lock presents to a resource.
func Of(resource string, guard *lowkey.Guard) Fence {
	return Fence{Resource: resource, Token: guard.Token(), Shared: guard.Shared()}
}

// signed checks the fence, and gives the token as databases have it.
func (f Fence) signed() (int64, error) {
	if len(f.Resource) < 1 || len(f.Resource) > 512 || strings.IndexFunc(f.Resource, unicode.IsControl) >= 0 {
		return 0, errors.New("lowkeyfence: the name of a resource must have 1 to 512 bytes and no control characters")
	}
	if f.Token < 1 || f.Token > math.MaxInt64 {
		return 0, fmt.Errorf("lowkeyfence: %d is no fencing token: they are from 1 to %d", f.Token, int64(math.MaxInt64))
	}
	return int64(f.Token), nil
}

// Database is a kind of database.
type Database struct {
	install func() []string
	begin   string
	present string
	// isRefusal tells whether an error of the present statement is a refusal.
	isRefusal func(error) bool
}

//go:embed sql/postgres.sql
var postgresSQL string

//go:embed sql/sqlite.sql
var sqliteSQL string

// installLock keeps two installations in PostgreSQL from creating the same table at once.
const installLock = "SELECT pg_advisory_xact_lock(119182888494457)"

// Postgres is PostgreSQL. The check upserts the marks first in the transaction that writes: its row lock lasts until
// the commit, so check and write are one step at every isolation level.
var Postgres = &Database{
	install: func() []string { return append([]string{installLock}, statements(postgresSQL)...) },
	begin:   "BEGIN",
	present: "SELECT lowkey_fence($1, $2, $3)",
	isRefusal: func(err error) bool {
		// pgx and pq both have this method.
		var state interface{ SQLState() string }
		return errors.As(err, &state) && state.SQLState() == "LK001"
	},
}

// SQLite is SQLite. The transaction is BEGIN IMMEDIATE: it is the one writer from its first statement on. Other
// writers make it wait, so set a busy timeout.
var SQLite = &Database{
	install:   func() []string { return []string{sqliteSQL} },
	begin:     "BEGIN IMMEDIATE",
	present:   "INSERT INTO lowkey_present (resource, token, shared) VALUES ($1, $2, $3)",
	isRefusal: func(err error) bool { return strings.Contains(err.Error(), "STALE_TOKEN") },
}

// statements takes SQL apart. A statement ends at a line that ends with ";", except between dollar quotes.
func statements(text string) []string {
	var all []string
	var one strings.Builder
	isQuoted := false
	for line := range strings.Lines(text) {
		if strings.Count(line, "$lowkey$")%2 == 1 {
			isQuoted = !isQuoted
		}
		one.WriteString(line)
		if !isQuoted && strings.HasSuffix(strings.TrimRight(line, " \n"), ";") {
			all = append(all, one.String())
			one.Reset()
		}
	}
	return all
}

// Install creates the table and what belongs to it, or brings it up to date. It may be run as often as you like.
func (d *Database) Install(ctx context.Context, db *sql.DB) error {
	return d.transaction(ctx, db, func(tx *sql.Conn) error {
		for _, statement := range d.install() {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// Claim presents the token in a transaction of its own. From its end on no earlier holder writes.
//
// It is the first act of a new holder, before it reads anything that its writes depend on. It is not needed where
// one transaction reads and writes: see [Database.Write].
func (d *Database) Claim(ctx context.Context, db *sql.DB, fence Fence) error {
	return d.Write(ctx, db, fence, func(*sql.Conn) error { return nil })
}

// Write runs work in a transaction that begins with the check, and commits it. Read and write inside, by tx alone.
// If the token is refused, the work does not run. If the work fails, nothing is written.
//
// The work must not end the transaction. It may write rows on behalf of other resources too, if it calls
// [Database.Present] for each of them first.
func (d *Database) Write(ctx context.Context, db *sql.DB, fence Fence, work func(tx *sql.Conn) error) error {
	return d.transaction(ctx, db, func(tx *sql.Conn) error {
		if err := d.Present(ctx, tx, fence); err != nil {
			return err
		}
		return work(tx)
	})
}

// Executor is what runs a statement: a *sql.Tx, or a *sql.Conn with an open transaction.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Present presents the token in a transaction that has begun. Do so before its first read: what was read before may
// be old. After a refusal, roll back. In SQLite the transaction must have begun with BEGIN IMMEDIATE.
func (d *Database) Present(ctx context.Context, tx Executor, fence Fence) error {
	token, err := fence.signed()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, d.present, fence.Resource, token, fence.Shared)
	if err != nil && d.isRefusal(err) {
		return &RefusedError{Fence: fence, Cause: err}
	}
	return err
}

// transaction runs work between begin and commit, on one connection.
func (d *Database) transaction(ctx context.Context, db *sql.DB, work func(*sql.Conn) error) (err error) {
	tx, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Close() }()
	if _, err := tx.ExecContext(ctx, d.begin); err != nil {
		return err
	}
	isDone := false
	defer func() {
		if isDone {
			return
		}
		// Also if the context has ended, or the work panics: the connection goes back into the pool.
		if _, failed := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); failed != nil {
			_ = tx.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	if err := work(tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	isDone = true
	return nil
}
