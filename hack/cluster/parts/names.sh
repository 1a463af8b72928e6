# shellcheck shell=bash disable=SC2034
# Names and addresses of the dev cluster.

NETNS=$(basename "$DEV")
HOST_LINK=${NETNS:0:14}0 # the host's end of the veth pair
# A cluster keeps its IP family until cluster-down: network_up records it.
IP_FAMILY=$(cat "$DEV/run/network" 2>/dev/null || echo "${ALUSTAN_IP_FAMILY:-}")
IP_FAMILY=${IP_FAMILY:-ipv4}
# NODE_HOST, API_SERVICE_HOST: address in URLs. VIA: command with which buildah and skopeo reach the registry as HOST_REGISTRY. They accept
# no IPv6 address in the name of an image.
case $IP_FAMILY in
  ipv4)
    NODE_IP=10.99.1.2
    HOST_IP=10.99.1.1
    LINK_PREFIX=30
    POD_CIDR=10.244.0.0/24
    SERVICE_CIDR=10.96.0.0/16
    API_SERVICE_IP=10.96.0.1
    DNS_SERVICE_IP=10.96.0.10
    NODE_HOST=$NODE_IP
    API_SERVICE_HOST=$API_SERVICE_IP
    ANY_IP=0.0.0.0
    ANY_CIDR=0.0.0.0/0
    DNS_RECORD=A
    IPTABLES=iptables
    VIA=()
    HOST_REGISTRY=$NODE_IP:5000
    ;;
  ipv6)
    NODE_IP=fd99::1:2
    HOST_IP=fd99::1:1
    LINK_PREFIX=126
    POD_CIDR=fd44::/112
    SERVICE_CIDR=fd96::/112
    API_SERVICE_IP=fd96::1
    DNS_SERVICE_IP=fd96::a
    NODE_HOST=[$NODE_IP]
    API_SERVICE_HOST=[$API_SERVICE_IP]
    ANY_IP=::
    ANY_CIDR=::/0
    DNS_RECORD=AAAA
    IPTABLES=ip6tables
    VIA=("$ROOT/hack/cluster/in")
    HOST_REGISTRY=registry.alustan.test:5000
    ;;
  *) die "unknown ALUSTAN_IP_FAMILY=$IP_FAMILY: expected ipv4 or ipv6" ;;
esac
NODE=node1
CGROUP=$NETNS
GIT_UID=65533 # owner of the repositories, and user of git over ssh and https
TOOLS_IMAGE=localhost/alustan-dev/tools:1
KUBECONFIG_ADMIN=$DEV/kubeconfig

# Host names of the node, for pods, node and tests. All names below *.amazonaws.com lead to moto.
DEV_HOSTS=(registry.alustan.test private-registry.alustan.test git.alustan.test)
GIT_HOSTS=(git.alustan.test github.com gitlab.com bitbucket.org)
DOCKER_HOSTS=(docker.io registry-1.docker.io index.docker.io)
AWS_NAMES=('*.amazonaws.com' '*.us-east-1.amazonaws.com' '*.s3.us-east-1.amazonaws.com' '*.s3.amazonaws.com')
