"""A database that refuses the write of a holder that woke up too late."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from lowkey import Client, fence


def write(connection: sqlite3.Connection, text: str, token: int) -> None:
    try:
        # Check, read and write in one transaction.
        with fence.sqlite(connection, "report", token):
            connection.execute("INSERT INTO report VALUES (?, ?)", (text, token))
        print(f"written with token {token}: {text}")
    except fence.StaleToken as stale:
        print(f"refused: {stale}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Client() as client:
        connection = sqlite3.connect(Path(folder) / "report.db")
        fence.install_sqlite(connection)
        connection.execute("CREATE TABLE report (text TEXT, token INTEGER)")
        connection.commit()
        with client.session() as one, client.session() as two:
            paused = one.lock("examples/report")
            write(connection, "by the first holder", paused.token)
            # The first holder is paused, and an operator frees its lock.
            client.release_lock("examples/report", one.lease_id, paused.token)
            with two.lock("examples/report") as guard:
                write(connection, "by the second holder", guard.token)
            # The first one wakes up, and has not heard of it yet.
            write(connection, "too late", paused.token)
        connection.close()


if __name__ == "__main__":
    main()
