# syntax=docker/dockerfile:1
# One static binary in an empty image: no shell, no libc, nobody but one user.
#
#   docker build -t lowkey .
FROM rust:1.95-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# With --target, or build scripts and macros would be static too, and macros must be libraries.
RUN RUSTFLAGS='-C target-feature=+crt-static --cfg getrandom_backend="linux_raw"' \
        cargo build --locked --release -p lowkey-cli --target "$(rustc --print host-tuple)" \
    && packaging/image-root "target/$(rustc --print host-tuple)/release/lowkey" /image

FROM scratch
COPY --from=build /image /
USER 65532:65532
# Everything that a node writes is here; the root file system may be read-only.
VOLUME /data
ENV LOWKEY_DATA_DIR=/data \
    LOWKEY_RAFT_ADDR=:7000 \
    LOWKEY_GRPC_ADDR=:9000 \
    LOWKEY_HTTP_ADDR=:8080
EXPOSE 7000 9000 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s \
    CMD ["/lowkey", "health", "--connect-timeout", "2s"]
ENTRYPOINT ["/lowkey"]
CMD ["server"]
