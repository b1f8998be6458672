// Package fencing tries package lowkeyfence on real databases. It is beside the examples since it needs drivers,
// which the SDK itself does without.
package fencing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"lowkey/internal/clustertest"
	"lowkey/lowkeyfence"
)

func TestSQLite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fenced.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tryFence(t, lowkeyfence.SQLite, db)
}

func TestPostgres(t *testing.T) {
	db, err := sql.Open("pgx", startPostgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(20)
	tryFence(t, lowkeyfence.Postgres, db)
}

func tryFence(t *testing.T, database *lowkeyfence.Database, db *sql.DB) {
	ctx := t.Context()
	// Idempotent, and also for several at once.
	var installers sync.WaitGroup
	for range 3 {
		installers.Go(func() {
			if err := database.Install(ctx, db); err != nil {
				t.Error(err)
			}
		})
	}
	installers.Wait()
	if _, err := db.ExecContext(ctx, "CREATE TABLE history (place INTEGER, token BIGINT)"); err != nil {
		t.Fatal(err)
	}
	accepts := func(resource string, token uint64, shared bool) bool {
		t.Helper()
		err := database.Claim(ctx, db, lowkeyfence.Fence{Resource: resource, Token: token, Shared: shared})
		if err != nil && !errors.Is(err, lowkeyfence.ErrRefused) {
			t.Fatal(err)
		}
		return err == nil
	}
	for _, step := range []struct {
		token    uint64
		shared   bool
		accepted bool
	}{
		{8, false, true}, {8, false, true}, {10, true, true}, {9, true, true}, {9, false, false}, {10, false, true},
		{9, true, false}, {10, true, true}, {1<<63 - 1, false, true}, {1<<63 - 2, false, false},
	} {
		if accepts("rule", step.token, step.shared) != step.accepted {
			t.Fatalf("token %d, shared %v", step.token, step.shared)
		}
	}
	if !accepts("another", 1, false) {
		t.Fatal("resources are not compared with each other")
	}
	t.Run("work that fails writes nothing", func(t *testing.T) { failingWork(t, database, db) })
	t.Run("a late holder does not write", func(t *testing.T) { lateHolder(t, database, db) })
	t.Run("accepted tokens never go back", func(t *testing.T) { neverBack(t, database, db) })
}

func failingWork(t *testing.T, database *lowkeyfence.Database, db *sql.DB) {
	wrong := errors.New("wrong")
	fence := lowkeyfence.Fence{Resource: "failing", Token: 5}
	insert := func(ctx context.Context, tx *sql.Conn) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO history (place, token) VALUES ($1, $2)", -1, 5)
		return err
	}
	err := database.Write(t.Context(), db, fence, func(tx *sql.Conn) error {
		return errors.Join(insert(t.Context(), tx), wrong)
	})
	if !errors.Is(err, wrong) {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = database.Write(ctx, db, fence, func(tx *sql.Conn) error {
		err := insert(ctx, tx)
		cancel()
		return err
	})
	if err == nil {
		t.Fatal("written although the context had ended")
	}
	func() {
		defer func() { _ = recover() }()
		_ = database.Write(t.Context(), db, fence, func(tx *sql.Conn) error {
			_ = insert(t.Context(), tx)
			panic("in the middle")
		})
	}()
	var count int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM history WHERE place = -1").Scan(&count); err != nil || count != 0 {
		t.Fatalf("%d written, %v", count, err)
	}
	// The mark was not raised either, and the connection is free.
	if err := database.Claim(t.Context(), db, lowkeyfence.Fence{Resource: "failing", Token: 4}); err != nil {
		t.Fatal(err)
	}
}

// lateHolder has a holder that was paused between its last look and its write meet a successor, many times.
func lateHolder(t *testing.T, database *lowkeyfence.Database, db *sql.DB) {
	rounds, _ := clustertest.Rounds(t, 100)
	for round := range rounds {
		old := lowkeyfence.Fence{Resource: fmt.Sprint("late/", round), Token: uint64(2*round + 1)}
		next := old
		next.Token++
		var both sync.WaitGroup
		var claimed time.Time
		both.Go(func() {
			if err := database.Claim(t.Context(), db, next); err != nil {
				t.Error(err)
			}
			claimed = time.Now()
		})
		var began time.Time
		err := database.Write(t.Context(), db, old, func(*sql.Conn) error {
			began = time.Now()
			return nil
		})
		both.Wait()
		if err != nil && !errors.Is(err, lowkeyfence.ErrRefused) {
			t.Fatal(err)
		}
		if err == nil && began.After(claimed) {
			t.Fatalf("round %d: a late holder wrote after its successor had claimed", round)
		}
	}
}

// neverBack has many holders write with random tokens: what was accepted never goes back.
func neverBack(t *testing.T, database *lowkeyfence.Database, db *sql.DB) {
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 50 {
				token := 1 + rand.Int64N(1000)
				fence := lowkeyfence.Fence{Resource: "never-back", Token: uint64(token)}
				err := database.Write(t.Context(), db, fence, func(tx *sql.Conn) error {
					_, err := tx.ExecContext(t.Context(),
						"INSERT INTO history (place, token) SELECT count(*), CAST($1 AS BIGINT) FROM history", token)
					return err
				})
				if err != nil && !errors.Is(err, lowkeyfence.ErrRefused) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	rows, err := db.QueryContext(t.Context(), "SELECT token FROM history ORDER BY place")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var history []int64
	for rows.Next() {
		var token int64
		if err := rows.Scan(&token); err != nil {
			t.Fatal(err)
		}
		history = append(history, token)
	}
	if len(history) < 2 || !slices.IsSorted(history) {
		t.Fatalf("%v", history)
	}
}

// startPostgres starts a server of its own, and returns where it is.
func startPostgres(t *testing.T) string {
	t.Helper()
	initdb, server := findPostgres("initdb"), findPostgres("postgres")
	if initdb == "" || server == "" {
		clustertest.Skip(t, "PostgreSQL (initdb and postgres) is not installed")
	}
	folder, err := os.MkdirTemp("", "lowkey-postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	attributes := asUser(t, folder)
	data := filepath.Join(folder, "data")
	init := exec.Command(initdb, "-D", data, "-U", "lowkey", "-A", "trust", "--no-sync", "-E", "UTF8")
	init.Dir, init.SysProcAttr = folder, attributes
	if output, err := init.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	run := exec.Command(server, "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", folder, "-F")
	run.Dir, run.SysProcAttr = folder, attributes
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = run.Process.Signal(syscall.SIGQUIT)
		_ = run.Wait()
	})
	address := fmt.Sprintf("postgres://lowkey@127.0.0.1:%d/postgres?sslmode=disable", port)
	clustertest.WaitFor(t, "PostgreSQL to answer", func() bool {
		db, err := sql.Open("pgx", address)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		return db.PingContext(t.Context()) == nil
	})
	return address
}

// findPostgres looks where Debian puts it, too.
func findPostgres(name string) string {
	if path, err := exec.LookPath(name); err == nil && name != "postgres" {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) > 0 {
		return found[len(found)-1]
	}
	path, _ := exec.LookPath(name)
	return path
}

// asUser runs the server as another user: it refuses to run as root.
func asUser(t *testing.T, folder string) *syscall.SysProcAttr {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		clustertest.Skip(t, "PostgreSQL does not run as root, and there is no user nobody")
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	if err := os.Chown(folder, uid, gid); err != nil {
		t.Fatal(err)
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
