#!/usr/bin/env bash
# Runs all tests. Stories that share the cluster wait for each other, so they run beside the others.
set -uo pipefail
cd "$(dirname "$0")/.."

modules=()
for file in tests/{broker_info,brokers_*,cluster_*,fleet,health,kubernetes_*}.rs; do
  modules+=("$(basename "$file" .rs)::")
done
log=target/cluster-stories.log

cargo test --workspace --locked --no-run || exit
cargo test --workspace --locked --quiet --test stories -- --test-threads 4 "${modules[@]}" >"$log" 2>&1 &
cluster=$!
trap 'kill "$cluster" 2>/dev/null' EXIT
# Not with the stories: what those skip would skip unit tests of the same names, too.
code=0
cargo test --workspace --locked --lib --bins --test claim_protocol || code=$?
cargo test --workspace --locked --doc || code=$?
cargo test --workspace --locked --test stories -- --test-threads 4 "${modules[@]/#/--skip=}" || code=$?
wait "$cluster" || code=$?
cat "$log"
exit "$code"
