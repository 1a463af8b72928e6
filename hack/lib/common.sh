# shellcheck shell=bash disable=SC2034
# Names, folders and messages shared by every script under hack/. Source it; it starts nothing.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${ALUSTAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/alustan}
DEV=${ALUSTAN_DEV_DIR:-/var/tmp/alustan-dev}

# say TEXT: one progress line, with the seconds since the script began.
say() { printf '%4ds  %s\n' "$SECONDS" "$*" >&2; }

# die TEXT: one line that says what is wrong and what to do, then the end.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: run it as root or with sudo -E"; }

# tool_key NAME: the cache folder name of a Go tool, from its version and everything that its build reads.
tool_key() {
  local dir=$ROOT/hack/tools/$1 version sum
  [ -f "$dir/go.mod" ] || die "no such tool: $1 (see hack/tools/)"
  version=$(sed -n 's/^require [^ ]* \(v[^ ]*\).*/\1/p' "$dir/go.mod" | head -n 1)
  sum=$(cd "$dir" && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-12)
  echo "$1-$version-$sum"
}

# tool_bin NAME: the folder that holds the binaries of a Go tool once `hack/tools/build NAME` has run.
tool_bin() { echo "$CACHE/tools/$(tool_key "$1")"; }
