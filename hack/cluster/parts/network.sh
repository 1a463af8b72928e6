# shellcheck shell=bash
# Network namespace of the cluster. Rules, bridges and sysctls of the host network are not changed.

network_up() {
  local setting settings=(net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1) options=() version=-${IP_FAMILY#ipv}
  local pods_out="-s $POD_CIDR -o eth0 -j MASQUERADE"
  if [ "$IP_FAMILY" = ipv6 ]; then
    # Without duplicate address detection (DAD), which would delay the use of each address by a second.
    settings=(net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0 net.bridge.bridge-nf-call-ip6tables=1)
    options=(nodad)
  fi
  echo "$IP_FAMILY" >"$DEV/run/network"
  [ -e "/run/netns/$NETNS" ] || ip netns add "$NETNS"
  if ! ip link show "$HOST_LINK" >/dev/null 2>&1; then
    ip link add "$HOST_LINK" type veth peer name eth0 netns "$NETNS"
    ip addr add "$HOST_IP/$LINK_PREFIX" dev "$HOST_LINK" "${options[@]}"
    ip link set "$HOST_LINK" up
    ip -n "$NETNS" link set lo up
    ip -n "$NETNS" addr add "$NODE_IP/$LINK_PREFIX" dev eth0 "${options[@]}"
    ip -n "$NETNS" link set eth0 up
    ip "$version" -n "$NETNS" route add default via "$HOST_IP"
  fi
  for setting in "${settings[@]}"; do
    nsenter --net="/run/netns/$NETNS" sysctl -qw "$setting" ||
      die "cannot set $setting in the namespace: load the kernel module br_netfilter (modprobe br_netfilter)"
  done
  # Masquerades traffic of pods, because the host has no route to them.
  nsenter --net="/run/netns/$NETNS" sh -c "$IPTABLES -t nat -C POSTROUTING $pods_out 2>/dev/null || $IPTABLES -t nat -A POSTROUTING $pods_out"
  printf 'nameserver %s\n' "$NODE_IP" >"$DEV/resolv.conf"
  printf '%s\n' "$NODE_IP ${DEV_HOSTS[*]} ${GIT_HOSTS[*]:1} ${DOCKER_HOSTS[*]} s3.us-east-1.amazonaws.com dynamodb.us-east-1.amazonaws.com sts.us-east-1.amazonaws.com" >"$DEV/hosts"
  # For tests.
  printf '%s\n' "HOST_IP $HOST_IP" "NODE_IP $NODE_IP" "API_SERVICE_IP $API_SERVICE_IP" >"$DEV/addresses"
}

network_down() {
  [ -e "$DEV/run/network" ] || return 0
  ip link del "$HOST_LINK" 2>/dev/null || true
  [ ! -e "/run/netns/$NETNS" ] || ip netns del "$NETNS"
  # `ip netns add` mounts this folder on itself. The folder is removed after the last namespace.
  if [ -z "$(ls -A /run/netns 2>/dev/null)" ]; then { umount /run/netns && rmdir /run/netns; } 2>/dev/null || true; fi
  rm -f "$DEV/run/network"
}
