# Shortcuts. CONTRIBUTING.md has the plain cargo commands behind them.

# List the recipes.
default:
    @just --list

# Check everything, change nothing.
verify: format-check lint doc test

# Put in order whatever a tool can put in order. It changes files.
fix:
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all

# Run every test.
test:
    cargo test --workspace

# Start a node; by default one that founds a cluster of its own in ./data.
run *flags='--bootstrap --data-dir ./data':
    cargo run --release -- {{ flags }}

# Write the output of the golden scripts anew. Review the difference before committing it.
golden:
    UPDATE_GOLDENFILES=1 cargo test -p lowkey-core -p lowkey-replica --test golden

# Write the generated parts of docs/reference anew: the OpenAPI document, commands and flags.
reference:
    UPDATE_GOLDENFILES=1 cargo test -p lowkey-server --test edge openapi
    UPDATE_GOLDENFILES=1 cargo test -p lowkey-cli --bin lowkey reference

# Check the licences and known faults of what we depend on (needs cargo-deny).
deny:
    cargo deny check

format-check:
    cargo fmt --all --check

lint:
    cargo clippy --workspace --all-targets -- -D warnings

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
