# shellcheck shell=bash
# CoreDNS at the address of the node, behind Service kube-system/kube-dns. It resolves names of pods, as with kubeadm. Unknown names get NXDOMAIN.

dns_start() {
  local names="${DEV_HOSTS[*]} ${GIT_HOSTS[*]:1} ${DOCKER_HOSTS[*]} amazonaws.com"
  port_free coredns 53
  cat >"$DEV/Corefile" <<E
cluster.local in-addr.arpa ip6.arpa {
  bind $NODE_IP
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $KUBECONFIG_ADMIN alustan-dev
    pods insecure
  }
  cache 5
}
. {
  bind $NODE_IP
  errors
  template IN $DNS_RECORD $names {
    answer "{{ .Name }} 60 IN $DNS_RECORD $NODE_IP"
  }
  template ANY ANY $names {
    rcode NOERROR
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
E
  start coredns "$(tool_bin coredns)/coredns" -conf "$DEV/Corefile"
}

dns_manifest() {
  cat <<E
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: "$DNS_SERVICE_IP"
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-node, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: ${IP_FAMILY/ip/IP}
endpoints: [{addresses: ["$NODE_IP"]}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
E
}
