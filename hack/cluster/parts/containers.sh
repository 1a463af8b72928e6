# shellcheck shell=bash
# Kills all pods: the processes in the cgroup of the cluster, then the shims of its containerd.

containers_kill() {
  local dir pid left deadline=$((SECONDS + 10))
  while :; do
    left=''
    for dir in $(cgroup_dirs); do
      [ -d "$dir" ] || continue
      for pid in $(find "$dir" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u); do
        left=yes
        kill -KILL "$pid" 2>/dev/null || true
      done
    done
    [ -n "$left" ] || break
    [ "$SECONDS" -lt "$deadline" ] || die "processes of pods do not end: see $(cgroup_dirs | head -n 1)"
    sleep 0.1
  done
  shims_kill
}

# The arguments of a shim contain the socket of its containerd. The file `address` in the bundle contains the socket of the shim.
shims_kill() {
  local pid address
  for address in "$DEV"/containerd/state/io.containerd.runtime.v2.task/k8s.io/*/address; do
    [ ! -f "$address" ] || rm -f "$(sed 's#^unix://##' "$address")"
  done
  for pid in $(pgrep -f "^[^ ]*containerd-shim-runc-v2 .*-address $DEV/containerd/containerd.sock( |$)"); do
    kill -KILL "$pid" 2>/dev/null || true
  done
}

# A cgroup can be removed once its last process has ended. A killed shim ends after a moment.
cgroup_remove() {
  local dir deadline=$((SECONDS + 2))
  for dir in $(cgroup_dirs) $(parts_cgroup); do
    while [ -d "$dir" ] && ! find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do
      sleep 0.05
    done
  done
}

mounts_remove() {
  local mount
  awk -v dir="$DEV/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mount; do umount -l "$mount" || true; done
}
