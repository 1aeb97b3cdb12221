#!/usr/bin/env bash
# Says whether this commit can be a release: check.sh VERSION. Changes nothing.
set -euo pipefail

[ $# = 1 ] || { echo 'usage: check.sh VERSION' >&2; exit 1; }
version=$1 failed=0
check() { # FACT COMMAND...
  if "${@:2}" >/dev/null 2>&1; then echo "release: ok: $1"; else echo "release: FAILED: $1"; failed=1; fi
}
not() { ! "$@"; }

check 'nothing in the tree differs from the commit' test -z "$(git status --porcelain)"
check "the version, $version, is none between releases: make version V=..." not grep -q -e '-dev$' <<<"$version"
tagged=$(git rev-parse --verify --quiet "refs/tags/v$version^{commit}" || true)
check "the tag v$version is this commit, or not there yet" test "${tagged:-$(git rev-parse HEAD)}" = "$(git rev-parse HEAD)"
check "CHANGELOG.md has a section '## $version - YYYY-MM-DD'" grep -qE "^## ${version//./\\.} - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md
check 'CHANGELOG.md has nothing that is unreleased' not grep -q '^## Unreleased' CHANGELOG.md
check 'the chart has this version' test "$(sed -n 's/^\(version\|appVersion\): //p' deploy/helm/akri/Chart.yaml | sort -u)" = "$version"
[ "$failed" = 0 ] || { echo "no release: docs/contribute/releasing.md has the steps" >&2; exit 1; }
