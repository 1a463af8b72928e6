# shellcheck shell=bash
# Checks of the machine before anything is started. A failure is one line with the remedy.

PROGRAMS=(containerd containerd-shim-runc-v2 runc docker-registry nginx fcgiwrap sshd ip "$IPTABLES" conntrack nsenter
  unshare setpriv openssl git busybox ctr)

preflight() {
  local program
  need_root "make cluster-up"
  export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
  [ "$(df --output=avail -k "$(dirname "$DEV")" | tail -n 1)" -gt 2000000 ] ||
    die "less than 2 GB are free in $(dirname "$DEV"): free disk space, or set ALUSTAN_DEV_DIR to a folder on another disk"
  unshare --net --mount true 2>/dev/null ||
    die "root may not create namespaces on this machine (CAP_SYS_ADMIN, CAP_NET_ADMIN): run in a virtual machine or a privileged container"
  for program in "${PROGRAMS[@]}"; do
    command -v "$program" >/dev/null || die "$program is not on PATH: run make setup"
  done
  [ -x /usr/lib/cni/bridge ] || die "/usr/lib/cni/bridge is missing: apt-get install --reinstall containernetworking-plugins"
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null ||
    die "the kernel has no overlayfs: run on a kernel with CONFIG_OVERLAY_FS"
  [ -d /sys/fs/cgroup/memory ] || [ -f /sys/fs/cgroup/cgroup.controllers ] ||
    die "no cgroups are mounted at /sys/fs/cgroup: mount them (systemd does) and try again"
}

# Checks that the network namespace and the addresses belong to this cluster or are unused.
preflight_network() {
  local link
  [ "${ALUSTAN_IP_FAMILY:-$IP_FAMILY}" = "$IP_FAMILY" ] ||
    die "the cluster in $DEV has the IP family $IP_FAMILY, not $ALUSTAN_IP_FAMILY: run make cluster-down, or leave ALUSTAN_IP_FAMILY unset"
  if [ -e "/run/netns/$NETNS" ] && [ ! -e "$DEV/run/network" ]; then
    die "the network namespace $NETNS exists and does not belong to $DEV: run make cluster-down with the ALUSTAN_DEV_DIR that created it, or ip netns del $NETNS"
  fi
  link=$(ip -o "-${IP_FAMILY#ipv}" addr show to "$HOST_IP/$LINK_PREFIX" | awk '{ print $2 }' | grep -vx "$HOST_LINK" | head -n 1) || true
  [ -z "$link" ] || die "$HOST_IP/$LINK_PREFIX is in use by interface $link: remove that address, the dev cluster needs it"
}

# port_free NAME PORT...: fails if a port of a component that does not run is in use in the namespace.
port_free() {
  local name=$1 port
  shift
  is_up "$name" && return
  for port; do
    [ -z "$(nsenter --net="/run/netns/$NETNS" ss -Hltn "sport = :$port")" ] ||
      die "port $port of $name is in use in the namespace $NETNS (ip netns pids $NETNS lists the processes): stop that process and try again"
  done
}
