# shellcheck shell=bash
# Sources all parts. Defines the functions that up and down share.

# shellcheck source=hack/cluster/parts/names.sh
. "$ROOT/hack/cluster/parts/names.sh"
# shellcheck source=hack/cluster/parts/process.sh
. "$ROOT/hack/cluster/parts/process.sh"
# shellcheck source=hack/cluster/parts/preflight.sh
. "$ROOT/hack/cluster/parts/preflight.sh"
# shellcheck source=hack/cluster/parts/network.sh
. "$ROOT/hack/cluster/parts/network.sh"
# shellcheck source=hack/cluster/parts/pki.sh
. "$ROOT/hack/cluster/parts/pki.sh"
# shellcheck source=hack/cluster/parts/control-plane.sh
. "$ROOT/hack/cluster/parts/control-plane.sh"
# shellcheck source=hack/cluster/parts/runtime.sh
. "$ROOT/hack/cluster/parts/runtime.sh"
# shellcheck source=hack/cluster/parts/containers.sh
. "$ROOT/hack/cluster/parts/containers.sh"
# shellcheck source=hack/cluster/parts/node.sh
. "$ROOT/hack/cluster/parts/node.sh"
# shellcheck source=hack/cluster/parts/dns.sh
. "$ROOT/hack/cluster/parts/dns.sh"
# shellcheck source=hack/cluster/parts/storage.sh
. "$ROOT/hack/cluster/parts/storage.sh"
# shellcheck source=hack/cluster/parts/registry.sh
. "$ROOT/hack/cluster/parts/registry.sh"
# shellcheck source=hack/cluster/parts/git.sh
. "$ROOT/hack/cluster/parts/git.sh"
# shellcheck source=hack/cluster/parts/web.sh
. "$ROOT/hack/cluster/parts/web.sh"

COMPONENTS=(local-path coredns kubelet proxy scheduler controller-manager apiserver etcd containerd nginx fcgiwrap sshd registry
  private-registry)

# Allows one cluster-up or cluster-down at a time.
lock() {
  mkdir -p "$CACHE"
  exec 9>"$CACHE/.cluster.lock"
  flock -n 9 || { say "waiting for another cluster-up or cluster-down"; flock 9; }
}

any_up() {
  local name
  for name in "${COMPONENTS[@]}"; do is_up "$name" && return; done
  return 1
}

all_up() {
  local name
  for name in "${COMPONENTS[@]}"; do is_up "$name" || return; done
}

tear_down() {
  [ -d "$DEV/run" ] || return 0
  stop local-path coredns kubelet proxy scheduler controller-manager
  stop containerd
  containers_kill
  stop moto gcs pg slow-disk "${COMPONENTS[@]}"
  mounts_remove
  cgroup_remove
  network_down
  node_clean
  rm -rf "$DEV"
}
