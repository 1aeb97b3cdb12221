#!/usr/bin/env bash
# Builds and runs all tests. Stories that share a cluster wait for each other and for its programs, so they begin first, on two clusters,
# and all that needs no cluster runs beside them: lints too.
set -uo pipefail
cd "$(dirname "$0")/.."

# The stories of each cluster, and those of both.
modules() {
  for file in "$@"; do
    echo "$(basename "$file" .rs)::"
  done
}
mapfile -t first < <(modules tests/{broker_info,brokers_*,cluster_*,health}.rs)
mapfile -t second < <(modules tests/{fleet,kubernetes_*}.rs)
clustered=("${first[@]}" "${second[@]}")
log=target/cluster-stories.log
second_log=target/second-cluster-stories.log
other_log=target/other-stories.log
failed=()

# Runs one part. The others run whether it succeeds or not.
part() {
  local name=$1
  shift
  echo "== $name"
  ("$@") || failed+=("$name")
}

# Runs stories as cargo does, but without its lock, which another part may hold for minutes.
stories() {
  cd tests && exec "$program" "$@"
}

# Runs up to three stories that failed once more, alone: a busy machine is no defect of the product. What passes then is named,
# and is to be mended.
alone() {
  local names
  mapfile -t names < <(sed -nE '/^failures:$/,$ s/^    ([a-z0-9_]+::[a-z0-9_]+)$/\1/p' "$1" | sort -u)
  test "${#names[@]}" -gt 0 -a "${#names[@]}" -le 3 || return 1
  echo "== once more, alone: ${names[*]}"
  (stories --test-threads 1 --exact "${names[@]}") || return 1
  printf 'unsteady, passed alone: %s\n' "${names[@]}"
}

handlers() {
  cd handlers && cargo test --workspace --locked --quiet
}

# With the tests' dependencies, so that cargo compiles everything with one set of features.
cargo build --workspace --locked --bins --test stories || exit
program=$(cargo test --workspace --locked --no-run --test stories --message-format json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*\/stories-[^"]*\)".*/\1/p')
test -x "$program" || { echo "cargo names no program with the stories" >&2; exit 1; }

stories --test-threads 4 --quiet "${first[@]}" >"$log" 2>&1 &
first_run=$!
AKRI_CLUSTER=second stories --test-threads 2 --quiet "${second[@]}" >"$second_log" 2>&1 &
second_run=$!
trap 'kill "$first_run" "$second_run" 2>/dev/null' EXIT
part lints make --no-print-directory lint
part "handlers' tests" handlers
# Not with the stories: what those skip would skip unit tests of the same names, too.
part "unit tests and exploration" cargo test --workspace --locked --lib --bins --test claim_protocol
echo "== stories without a cluster"
# In the foreground: what bash starts in the background ignores SIGINT, which stories send. Not through a pipe, which a process that
# outlives its story would hold open.
: >"$other_log"
tail -f "$other_log" &
shown=$!
(stories --test-threads 4 "${clustered[@]/#/--skip=}") >"$other_log" 2>&1
others=$?
sleep 1 && kill "$shown"
echo "== stories with a cluster, which ran beside the others"
wait "$first_run"
results=("$?")
wait "$second_run"
results+=("$?")
cat "$log" "$second_log"
test "$others" -eq 0 || alone "$other_log" || failed+=("stories without a cluster")
test "${results[0]}" -eq 0 || alone "$log" || failed+=("stories of the first cluster")
test "${results[1]}" -eq 0 || alone "$second_log" || failed+=("stories of the second cluster")
if [ "${#failed[@]}" -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
