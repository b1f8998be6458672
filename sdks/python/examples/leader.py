"""Leader election: two candidates; the first one stops, and the second takes over."""

from __future__ import annotations

import threading

from lowkey import Client, Election, Leadership


def main() -> None:
    with Client() as client:
        elected = {name: threading.Event() for name in ("one", "two")}
        elections: dict[str, Election] = {}

        def lead_as(name: str) -> None:
            def lead(leadership: Leadership) -> None:
                print(f"{name} leads, with token {leadership.token}")
                elected[name].set()
                while leadership.wait(0.1):  # false when the lead is lost, or to be given up
                    leadership.check()  # what only the leader may do, with leadership.token
                print(f"{name} leads no more")

            elections[name] = client.elect("examples/scheduler", value=name).start(lead)

        lead_as("one")
        elected["one"].wait()
        lead_as("two")
        leader = client.leader("examples/scheduler")
        print("the leader is", leader.value if leader else "nobody")
        elections["one"].stop()
        elected["two"].wait()
        leader = client.leader("examples/scheduler")
        print("the leader is", leader.value if leader else "nobody")
        elections["two"].stop()


if __name__ == "__main__":
    main()
