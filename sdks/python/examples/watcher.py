"""Every change of a lock, as it happens."""

from __future__ import annotations

import threading

from lowkey import Client


def work(client: Client) -> None:
    with client.session() as session:
        for _ in range(3):
            with session.lock("examples/watched", value="busy"):
                pass


def main() -> None:
    with Client() as client, client.watch("examples/watched") as watch:
        worker = threading.Thread(target=work, args=(client,))
        worker.start()
        released = 0
        for event in watch:  # goes on by itself after a lost connection
            print(f"{event.position} {event.type} {event.name} token {event.fencing_token}")
            released += event.type == "RELEASED"
            if released == 3:
                break
        worker.join()


if __name__ == "__main__":
    main()
