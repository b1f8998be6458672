# syntax=docker/dockerfile:1
# One static binary in an empty image: no shell, no libc, nobody but one user.
#
#   docker build -t lowkey .
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates musl-tools \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add x86_64-unknown-linux-musl
WORKDIR /src
COPY . .
RUN cargo build --locked --release -p lowkey-cli --target x86_64-unknown-linux-musl \
    && mkdir -p /image/data /image/tmp /image/etc/ssl/certs \
    && cp target/x86_64-unknown-linux-musl/release/lowkey /image/lowkey \
    && strip /image/lowkey \
    # Backups go to stores by HTTPS, and clients may trust public CAs.
    && cp -L /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt \
    && echo 'lowkey:x:65532:65532::/data:/sbin/nologin' > /image/etc/passwd \
    && chown 65532:65532 /image/data \
    && chmod 1777 /image/tmp

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
# Needs no token. With TLS it needs LOWKEY_ENDPOINTS=https://localhost:9000 and LOWKEY_CA: docs/operate/containers.md.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s \
    CMD ["/lowkey", "health", "--connect-timeout", "2s"]
ENTRYPOINT ["/lowkey"]
CMD ["server"]
