# shellcheck shell=bash disable=SC2034
# Names, folders and functions that the scripts in hack/ share. Sourcing it starts nothing.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${ALUSTAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/alustan}
DEV=${ALUSTAN_DEV_DIR:-/var/tmp/alustan-dev}
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}

# say TEXT: prints a progress line with the seconds since the start of the first script.
export ALUSTAN_STARTED=${ALUSTAN_STARTED:-$EPOCHSECONDS}
say() { printf '%4ds  %s\n' "$((EPOCHSECONDS - ALUSTAN_STARTED))" "$*" >&2; }

# die TEXT: prints one line with the problem and the remedy, and exits.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# profiled ARG...: restarts this script with its arguments ARG under hack/lib/profile, which prints the table at the end. Returns if a
# profile is already running, or if Python is missing.
profiled() {
  [ -z "${ALUSTAN_PROFILE:-}" ] || return 0
  command -v python3 >/dev/null || { [ "$(id -u)" = 0 ] && "$ROOT/hack/setup" packages python3-venv; } ||
    { say "python3 is not on PATH: no profile"; return 0; }
  exec "$ROOT/hack/lib/profile" run bash "$0" "$@"
}

# phase NAME COMMAND...: runs the command as a phase of the current profile, if there is one.
phase() { if [ -n "${ALUSTAN_PROFILE:-}" ]; then "$ROOT/hack/lib/profile" phase "$@"; else "${@:2}"; fi; }

# cargo test and cargo build. Both select the whole workspace; scripts append targets such as --test api or --bin sweep. cargo unifies
# features over the selected packages, and compiles a dependency again for other features. --examples includes the features of
# dev-dependencies; there are no examples.
CARGO_TEST=(cargo test --locked --workspace)
CARGO_BUILD=(cargo build --locked --workspace --examples)
[ -z "${ALUSTAN_PROFILE:-}" ] || CARGO_TEST+=(--config "target.'cfg(all())'.runner=['$ROOT/hack/lib/profile', 'test']")

# in_background COMMAND...: runs the command in a new process group, which is killed when this script ends.
in_background() {
  trap '[ "${#groups[@]}" = 0 ] || kill -- "${groups[@]/#/-}" 2>/dev/null || true' EXIT
  set -m
  "$@" &
  groups+=("$!")
  set +m
}
groups=()

# program FOLDER: prints the program name of a package of crates/.
program() { sed -n 's/^name = "\(.*\)"$/\1/p' "$1/Cargo.toml" | tail -n 1; }

# debug_folder: prints the folder of the programs that CARGO_BUILD builds.
debug_folder() { echo "$TARGET/$(rustc -vV | sed -n 's/^host: //p')/debug"; }

# engine: prints terraform if it is on PATH, otherwise or with ENGINE=opentofu prints opentofu.
engine() {
  case ${ENGINE:-} in
    opentofu) echo opentofu ;;
    terraform) command -v terraform >/dev/null || die "ENGINE=terraform, but terraform is not on PATH: install it, or leave ENGINE unset"; echo terraform ;;
    '') if command -v terraform >/dev/null; then echo terraform; else echo opentofu; fi ;;
    *) die "unknown ENGINE=$ENGINE: expected terraform or opentofu" ;;
  esac
}

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: run it as root or with sudo -E"; }

# tool_key NAME: prints the name of the cache folder of a Go tool, derived from its version and all inputs of its build.
tool_key() {
  local dir=$ROOT/hack/tools/$1 version sum
  [ -f "$dir/go.mod" ] || die "no such tool: $1 (see hack/tools/)"
  version=$(sed -n 's/^require [^ ]* \(v[^ ]*\).*/\1/p' "$dir/go.mod" | head -n 1)
  sum=$(cd "$dir" && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-12)
  echo "$1-$version-$sum"
}

# tool_bin NAME: prints the folder with the binaries of a Go tool. `hack/tools/build NAME` creates it.
tool_bin() { echo "$CACHE/tools/$(tool_key "$1")"; }

# use_wrapper: adds the wrapper of the runner tests to PATH.
use_wrapper() {
  "$ROOT/hack/tools/build" terragrunt
  PATH=$(tool_bin terragrunt):$PATH
  export PATH
}

# use_engine: adds the engine of the runner tests to PATH: terraform if it is installed, otherwise OpenTofu.
use_engine() {
  ! command -v terraform >/dev/null || return 0
  "$ROOT/hack/tools/build" opentofu
  mkdir -p "$CACHE/engine"
  ln -sf "$(tool_bin opentofu)/tofu" "$CACHE/engine/terraform"
  export PATH=$CACHE/engine:$PATH
}
