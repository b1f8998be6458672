// Command fencedwriter writes to a SQLite file under a lock, so that a late write is refused by the file itself.
//
//	LOWKEY_ENDPOINTS=http://127.0.0.1:9000 go run ./fencedwriter -file counter.db
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	_ "modernc.org/sqlite"

	"lowkey"
	"lowkey/lowkeyfence"
)

func main() {
	file := flag.String("file", "counter.db", "the database to write to")
	flag.Parse()
	if err := run(context.Background(), *file); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, file string) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS counter (value INTEGER NOT NULL)"); err != nil {
		return err
	}
	if err := lowkeyfence.SQLite.Install(ctx, db); err != nil {
		return err
	}
	client, err := lowkey.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := client.Session(ctx, lowkey.TTL(10*time.Second))
	if err != nil {
		return err
	}

	first, err := session.Lock(ctx, "examples/counter")
	if err != nil {
		return err
	}
	stale := lowkeyfence.Of("counter", first)
	if err := increment(ctx, db, stale); err != nil {
		return err
	}
	if err := first.Release(); err != nil {
		return err
	}
	second, err := session.Lock(ctx, "examples/counter")
	if err != nil {
		return err
	}
	defer second.Release()
	if err := increment(ctx, db, lowkeyfence.Of("counter", second)); err != nil {
		return err
	}

	// The first holder wakes up late, and does not know that its lock is gone. The file does.
	err = increment(ctx, db, stale)
	if !errors.Is(err, lowkeyfence.ErrRefused) {
		return fmt.Errorf("a late write was not refused: %w", err)
	}
	fmt.Println(err)
	return nil
}

// increment reads and writes in one transaction that begins with the check.
func increment(ctx context.Context, db *sql.DB, fence lowkeyfence.Fence) error {
	return lowkeyfence.SQLite.Write(ctx, db, fence, func(tx *sql.Conn) error {
		var value int
		err := tx.QueryRowContext(ctx, "SELECT coalesce(max(value), 0) + 1 FROM counter").Scan(&value)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO counter (value) VALUES ($1)", value); err != nil {
			return err
		}
		fmt.Printf("wrote %d with token %d\n", value, fence.Token)
		return nil
	})
}
