# shellcheck shell=bash
# containerd, the pod network, and the image that the node itself needs.

runtime_start() {
  local dir=$DEV/containerd
  mkdir -p "$dir" "$DEV/cni/conf"
  cat >"$DEV/cni/conf/10-pods.conflist" <<E
{"cniVersion": "0.4.0", "name": "$NETNS", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$DEV/cni/addresses", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "$ANY_CIDR"}]}}]}
E
  # restrict_oom_score_adj: if root lacks CAP_SYS_RESOURCE, runc fails for a pod with a negative score.
  # The opt plugin is disabled because it creates /opt/containerd.
  cat >"$dir/config.toml" <<E
version = 2
root = "$dir/root"
state = "$dir/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "$TOOLS_IMAGE"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$DEV/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$dir/certs.d"
E
  registry_host registry.alustan.test:5000 "http://$NODE_HOST:5000"
  registry_host private-registry.alustan.test "https://$NODE_HOST"
  registry_host docker.io "https://$NODE_HOST"
  start containerd containerd -c "$dir/config.toml"
}

# registry_host NAME URL: configures a registry by address, because containerd uses the resolver of the host.
registry_host() {
  mkdir -p "$DEV/containerd/certs.d/$1"
  printf 'server = "%s"\nca = "%s"\n[host]\n' "$2" "$DEV/ca.crt" >"$DEV/containerd/certs.d/$1/hosts.toml"
}

node_ctr() { ctr -a "$DEV/containerd/containerd.sock" -n k8s.io "$@"; }

# The image of pod sandboxes and of the volume helper: busybox. Assembled locally, without a registry.
runtime_image() {
  local dir=$DEV/tools-image diff name
  wait_for containerd 20 "containerd socket" node_ctr version
  [ -z "$(node_ctr images ls -q "name==$TOOLS_IMAGE")" ] || return 0
  mkdir -p "$dir/root/bin"
  cp "$(command -v busybox)" "$dir/root/bin/busybox"
  for name in sh sleep mkdir rm chmod chown; do ln -sf busybox "$dir/root/bin/$name"; done
  tar -C "$dir/root" --owner=0 --group=0 -cf "$dir/layer.tar" bin
  diff=$(sha256sum "$dir/layer.tar" | cut -d ' ' -f 1)
  cat >"$dir/config.json" <<E
{"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff"]},
 "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "2147483647"]}}
E
  echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$TOOLS_IMAGE\"], \"Layers\": [\"layer.tar\"]}]" >"$dir/manifest.json"
  tar -C "$dir" -cf "$dir/image.tar" manifest.json config.json layer.tar
  node_ctr images import "$dir/image.tar" >>"$DEV/log/containerd.log" 2>&1 || fail containerd "cannot import $TOOLS_IMAGE"
  rm -rf "$dir"
}
