#!/bin/sh
# Checks all of the Go SDK: formatting, vet, staticcheck, generated code, tests against real nodes, the examples, and
# a clean folder in which README's first example is typed.
#
# Needs Go, and a binary of lowkey: LOWKEY_BIN, or `lowkey` on the path. With LOWKEY_REQUIRE_ALL=1 nothing is skipped.
# LOWKEY_GO_RACE=0 leaves the race detector out, which needs a C compiler.
set -eu
cd "$(dirname "$0")"
here=$(pwd)
: "${LOWKEY_BIN:=$(command -v lowkey || true)}"
export LOWKEY_BIN
race=-race
[ "${LOWKEY_GO_RACE:-1}" = 0 ] && race=

say() { printf '\n== %s\n' "$*"; }

say "formatting"
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
    echo "gofmt would change: $unformatted"
    exit 1
fi

say "vet and staticcheck"
for folder in . examples; do
    (cd "$folder" && go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...)
done

say "the stubs are those of the proto file"
if command -v protoc >/dev/null; then
    before=$(cat lowkeypb/*.pb.go | cksum)
    ./generate.sh
    if [ "$(cat lowkeypb/*.pb.go | cksum)" != "$before" ]; then
        # Another version of protoc only writes its own number differently.
        git diff --stat -I '^// 	protoc' -I '^// - protoc' --exit-code -- lowkeypb || {
            echo "lowkeypb differs from the proto file: commit what ./generate.sh made"
            exit 1
        }
    fi
elif [ "${LOWKEY_REQUIRE_ALL:-}" = 1 ]; then
    echo "LOWKEY_REQUIRE_ALL is set, and protoc is not installed"
    exit 1
else
    echo "skipped: protoc is not installed"
fi

say "tests"
# shellcheck disable=SC2086
go test $race -count=1 -timeout 15m ./...
(cd examples && go test -count=1 -timeout 15m ./...)

say "a clean folder"
if [ -z "$LOWKEY_BIN" ]; then
    if [ "${LOWKEY_REQUIRE_ALL:-}" = 1 ]; then
        echo "LOWKEY_REQUIRE_ALL is set, and there is no binary of lowkey"
        exit 1
    fi
    echo "skipped: no binary of lowkey, set LOWKEY_BIN to one"
    exit 0
fi
clean=$(mktemp -d)
cluster=
cleanup() {
    if [ -n "$cluster" ]; then
        kill "$cluster" 2>/dev/null || true
        wait "$cluster" 2>/dev/null || true
    fi
    rm -rf "$clean"
}
trap cleanup EXIT
"$LOWKEY_BIN" dev --json >"$clean/dev.json" &
cluster=$!
waited=0
until grep -q endpoints "$clean/dev.json"; do
    waited=$((waited + 1))
    if [ "$waited" -gt 600 ]; then
        echo "lowkey dev does not start"
        exit 1
    fi
    sleep 0.1
done
endpoints=$(sed 's/.*"endpoints":\[\([^]]*\)\].*/\1/; s/"//g' "$clean/dev.json")
started=$(date +%s)
mkdir "$clean/nightly"
cd "$clean/nightly"
# What the README says, with the place of this module.
awk '/^```go$/ { go = 1; next } /^```$/ { if (go) exit } go' "$here/README.md" >main.go
go mod init nightly
go mod edit -require=lowkey@v1.0.0-rc.1 "-replace=lowkey=$here"
go mod tidy
LOWKEY_ENDPOINTS=$endpoints go run . | tee "$clean/printed"
grep -q '^held with token [1-9]' "$clean/printed"
echo "the lock was held $(($(date +%s) - started)) s after the folder was made"
