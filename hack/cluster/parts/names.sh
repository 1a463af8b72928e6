# shellcheck shell=bash disable=SC2034
# Names and addresses of the dev cluster.

NETNS=$(basename "$DEV")
HOST_LINK=${NETNS:0:14}0 # the host's end of the veth pair
NODE_IP=10.99.1.2
HOST_IP=10.99.1.1
POD_CIDR=10.244.0.0/24
SERVICE_CIDR=10.96.0.0/16
API_SERVICE_IP=10.96.0.1
DNS_SERVICE_IP=10.96.0.10
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
