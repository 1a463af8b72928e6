# shellcheck shell=bash
# kubelet and kube-proxy.

# kubelet sets these for the whole machine. cluster-down restores the previous values.
KUBELET_SYSCTLS=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)

# cgroup_dirs: prints the folder of the cluster's cgroup in each hierarchy.
cgroup_dirs() {
  awk -v name="$CGROUP" '$3 == "cgroup" || $3 == "cgroup2" { print $2 "/" name }' /proc/mounts
}

cgroup_up() {
  local dir
  for dir in $(cgroup_dirs); do
    mkdir -p "$dir"
    if [ -f "$dir/cpuset.cpus" ] && [ -z "$(cat "$dir/cpuset.cpus")" ]; then # cgroup v1 starts with an empty set
      cat "$dir/../cpuset.cpus" >"$dir/cpuset.cpus"
      cat "$dir/../cpuset.mems" >"$dir/cpuset.mems"
    fi
    if [ "$dir" = "/sys/fs/cgroup/$CGROUP" ]; then # only cgroup v2: controllers are delegated level by level
      echo "+cpu +cpuset +memory +pids" | tee "$dir/../cgroup.subtree_control" >"$dir/cgroup.subtree_control" ||
        die "cannot delegate cgroup controllers below $dir: run in a virtual machine or a container with a private cgroup namespace"
    fi
  done
}

node_start() {
  local dir=$DEV/kubelet
  port_free kubelet 10250
  cgroup_up
  [ -e "$DEV/run/sysctls" ] || sysctl "${KUBELET_SYSCTLS[@]}" >"$DEV/run/sysctls" 2>/dev/null || true
  mkdir -p "$dir" "$DEV/log/pods"
  cat >"$DEV/kubelet.yaml" <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $DEV/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $DEV/pki/kubelet.crt
tlsPrivateKeyFile: $DEV/pki/kubelet.key
address: "$ANY_IP"
containerRuntimeEndpoint: unix://$DEV/containerd/containerd.sock
podLogsDir: $DEV/log/pods
volumePluginDir: $DEV/kubelet/volume-plugins
clusterDomain: cluster.local
clusterDNS: ["$DNS_SERVICE_IP"]
resolvConf: $DEV/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
# The disk is shared with the rest of the machine: images are collected and pods evicted only when it is full.
imageGCHighThresholdPercent: 100
evictionHard: {imagefs.available: "1%", nodefs.available: "1%"}
E
  start kubelet "$KUBE/kubelet" --kubeconfig="$DEV/pki/kubelet.conf" --config="$DEV/kubelet.yaml" --hostname-override="$NODE" \
    --node-ip="$NODE_IP" --root-dir="$dir" --cert-dir="$DEV/pki"
  start proxy "$KUBE/kube-proxy" --kubeconfig="$DEV/pki/proxy.conf" --hostname-override="$NODE" --proxy-mode=iptables \
    --conntrack-max-per-core=0
}

node_wait() {
  wait_for kubelet 60 "node registered" kubectl get node "$NODE"
  wait_for kubelet 60 "node Ready" kubectl wait --for=condition=Ready --timeout=1s "node/$NODE"
  wait_for controller-manager 20 "default service account" kubectl get serviceaccount default
}

# Removes the files of kubelet and containerd outside of $DEV, and their folders if no other program uses them.
node_clean() {
  local link
  [ ! -s "$DEV/run/sysctls" ] || sysctl -q -p "$DEV/run/sysctls" >/dev/null 2>&1 || true
  for link in /var/log/containers/*; do
    case $(readlink "$link" 2>/dev/null) in "$DEV"/*) rm -f "$link" ;; esac
  done
  rm -f /var/lib/cni/results/"$NETNS"-* /var/lib/cni/cache/results/"$NETNS"-*
  pgrep -x kubelet >/dev/null || rm -f /var/lib/kubelet/device-plugins/kubelet.sock
  rmdir /var/log/containers /var/lib/cni/results /var/lib/cni/cache/results /var/lib/cni/cache /var/lib/cni \
    /run/containerd/s /run/containerd/fifo /run/containerd/runc/k8s.io /run/containerd/runc /run/containerd \
    /var/lib/kubelet/device-plugins /var/lib/kubelet 2>/dev/null || true
}
