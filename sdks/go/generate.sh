#!/bin/sh
# Makes lowkeypb from the proto file of the service. The result is committed: users need none of this.
#
# Needs protoc (Debian: protobuf-compiler) and Go. The versions of the two plugins are below.
set -eu
cd "$(dirname "$0")"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
GOBIN=$tools go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN=$tools go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
PATH=$tools:$PATH protoc --proto_path=../../crates/lowkey-api/proto \
    --go_out=. --go_opt=module=lowkey --go-grpc_out=. --go-grpc_opt=module=lowkey \
    lowkey/v1/lowkey.proto
gofmt -l lowkeypb
