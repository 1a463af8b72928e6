# shellcheck shell=bash
# Sources every part, and what up and down share.

for part in names process preflight network pki control-plane runtime containers node dns storage registry git web; do
  # shellcheck source=/dev/null
  . "$ROOT/hack/cluster/parts/$part.sh"
done

COMPONENTS=(local-path coredns kubelet proxy scheduler controller-manager apiserver etcd containerd moto nginx fcgiwrap sshd
  registry private-registry)

# One up or down at a time.
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

tear_down() {
  [ -d "$DEV/run" ] || return 0
  stop local-path coredns kubelet proxy scheduler controller-manager
  stop containerd
  containers_kill
  stop "${COMPONENTS[@]}"
  mounts_remove
  cgroup_remove
  network_down
  node_clean
  rm -rf "$DEV"
}
