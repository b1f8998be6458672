#!/usr/bin/env bash
# Everything that must hold of the SDK for Node: lints, types, tests against real nodes, the reference, and the
# package in a clean folder.
#
#   LOWKEY_BIN=…/lowkey sdks/typescript/check.sh
#
# It needs Node 20.4 or newer, npm and a lowkey binary. Where one is missing it says so and does nothing, or fails
# if LOWKEY_REQUIRE_ALL=1 is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
package=$PWD
exec </dev/null

missing() {
    if [ "${LOWKEY_REQUIRE_ALL:-}" = 1 ]; then
        echo "typescript: LOWKEY_REQUIRE_ALL=1 is set, and there is $*" >&2
        exit 1
    fi
    echo "typescript: skipped: there is $*"
    exit 0
}

step() {
    printf '\n==> %s\n' "$*"
    "$@"
}

command -v node >/dev/null || missing "no node"
command -v npm >/dev/null || missing "no npm"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 4) ? 0 : 1)' ||
    missing "only Node $(node --version), and 20.4 is needed"
if [ -z "${LOWKEY_BIN:-}" ]; then
    for candidate in ../../target/debug/lowkey ../../target/release/lowkey; do
        if [ -x "$candidate" ]; then LOWKEY_BIN=$PWD/$candidate; fi
    done
fi
[ -n "${LOWKEY_BIN:-}" ] && [ -x "$LOWKEY_BIN" ] || missing "no lowkey binary: set LOWKEY_BIN, or run cargo build -p lowkey-cli"
LOWKEY_BIN=$(readlink -f "$LOWKEY_BIN")
export LOWKEY_BIN

if grep -q '"resolved"' package-lock.json; then
    echo "typescript: package-lock.json names a registry: it must not" >&2
    exit 1
fi
(cd ../.. && step npm --prefix sdks/typescript ci --no-audit --no-fund)
step npm run lint
step npm test
step npm run docs

folder=$(mktemp -d)
server=
cleanup() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap cleanup EXIT

# The code between the first fences of this language in the README.
example() {
    awk -v fence="^\`\`\`$1\$" '$0 ~ fence && !done { inside = 1; next } /^```/ && inside { inside = 0; done = 1 } inside' README.md
}

# As the README says it, from the root and with another folder.
mkdir "$folder/try"
(cd ../.. && step npm pack ./sdks/typescript --pack-destination "$folder/try")
read -r raft grpc http <<<"$(node -e '
    const net = require("node:net");
    const servers = [0, 1, 2].map(() => net.createServer().listen(0, "127.0.0.1"));
    setTimeout(() => { console.log(servers.map((s) => s.address().port).join(" ")); process.exit(0); }, 50);')"
"$LOWKEY_BIN" server --bootstrap --data-dir "$folder/data" --log error \
    --raft-addr "127.0.0.1:$raft" --grpc-addr "127.0.0.1:$grpc" --http-addr "127.0.0.1:$http" &
server=$!
until node -e "fetch('http://127.0.0.1:$http/readyz').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"; do
    kill -0 "$server" || { echo "typescript: the node ended" >&2; exit 1; }
done

printf '\n==> the package in a clean folder, and the first example of the README\n'
example js | sed "s|http://127.0.0.1:8080|http://127.0.0.1:$http|" >"$folder/try/first.mjs"
example ts >"$folder/try/second.mts"
cd "$folder/try"
started=$(node -p 'performance.timeOrigin + performance.now()')
npm init -y >/dev/null
npm install --no-audit --no-fund ./lowkey-*.tgz
[ "$(ls node_modules)" = lowkey ] || { echo "typescript: the package brings dependencies along: $(ls node_modules)" >&2; exit 1; }
said=$(node first.mjs)
ended=$(node -p 'performance.timeOrigin + performance.now()')
echo "$said"
grep -qE '^held with token [0-9]+$' <<<"$said" || { echo "typescript: the example did not hold its lock" >&2; exit 1; }
node -e "console.log('seconds from an empty folder until the lock was held: ' + ((Number(process.argv[2]) - Number(process.argv[1])) / 1000).toFixed(1))" "$started" "$ended"
"$package/node_modules/.bin/tsc" --noEmit --strict --module nodenext --target es2022 --lib es2022,esnext.disposable \
    --types node --typeRoots "$package/node_modules/@types" second.mts
echo "the second example has the right types"
