#!/bin/sh
# Everything that decides whether the Python SDK is in order: lints, types, tests against real nodes,
# and the wheel, installed into a clean environment, with the first example of the README.
#
#   LOWKEY_BIN=…           the node's program; target/release or target/debug otherwise
#   LOWKEY_REQUIRE_ALL=1   fail where something is missing, instead of leaving it out
#   PYTHON=python3         the interpreter
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
folder=$(mktemp -d)
node=
finish() {
    if [ -n "$node" ]; then kill "$node" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap finish EXIT

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    echo "sdks/python: there is no Python 3.9 or newer ($python)"
    if [ "${LOWKEY_REQUIRE_ALL:-}" = 1 ]; then exit 1; else exit 0; fi
fi

echo "== tools"
# Those that .ci/languages has installed, if they are the right ones.
ready=$(cd ../.. && pwd)/target/languages/python
if cmp -s tools.txt "$ready/tools.txt"; then
    tools=$ready/bin
else
    "$python" -m venv "$folder/tools"
    tools=$folder/tools/bin
    "$tools/pip" install --quiet --disable-pip-version-check -r tools.txt
fi

echo "== format, lints, types"
"$tools/ruff" format --check --quiet .
"$tools/ruff" check --quiet .
"$tools/mypy" --no-error-summary

echo "== tests"
PYTHONPATH=src "$tools/python" -m pytest -p no:cacheprovider

echo "== reference"
PYTHONPATH=src "$tools/pdoc" --output-directory "$folder/reference" lowkey lowkey.aio lowkey.fence lowkey.errors
ls "$folder/reference/lowkey.html" >/dev/null

echo "== wheel"
# With the setuptools of the tools: an environment of its own would be fetched anew.
"$tools/python" -m build --no-isolation --quiet --outdir "$folder/dist" . >/dev/null
wheel=$(ls "$folder"/dist/lowkey-*.whl)

program=$(cd tests && "$tools/python" -c 'from nodes import binary; print(binary() or "")')
if [ -z "$program" ]; then
    echo "sdks/python: no lowkey program, so the wheel was built and not tried"
    if [ "${LOWKEY_REQUIRE_ALL:-}" = 1 ]; then exit 1; else exit 0; fi
fi

echo "== the first example of the README, in a clean environment"
cat >"$folder/ports.py" <<'PORTS'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(sock.getsockname()[1] for sock in sockets))
PORTS
set -- $("$tools/python" "$folder/ports.py")
"$program" --bootstrap --data-dir "$folder/data" --log warn \
    --raft-addr "127.0.0.1:$1" --grpc-addr "127.0.0.1:$2" --http-addr "127.0.0.1:$3" &
node=$!
export LOWKEY_ENDPOINTS="http://127.0.0.1:$3"
"$tools/python" - "$LOWKEY_ENDPOINTS/readyz" <<'READY'
import sys, time, urllib.request
for _ in range(600):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=1)
        break
    except OSError:
        time.sleep(0.05)
else:
    sys.exit("the node is not ready")
READY
"$tools/python" - README.md >"$folder/first.py" <<'FIRST'
import re, sys
print(re.findall(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.S)[0])
FIRST
begun=$(date +%s.%N)
"$python" -m venv "$folder/clean"
"$folder/clean/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
installed=$(date +%s.%N)
(cd "$folder" && "$folder/clean/bin/python" first.py) >"$folder/said"
ended=$(date +%s.%N)
grep -q '^held, with token' "$folder/said"
"$folder/clean/bin/python" -c 'import lowkey, pathlib; assert (pathlib.Path(lowkey.__file__).parent / "py.typed").exists()'
"$tools/python" -c "
b, i, e = $begun, $installed, $ended
print(f'environment and wheel: {i - b:.1f} s; from the start of the program to the lock, and its end: {e - i:.2f} s')"
echo "sdks/python is in order"
