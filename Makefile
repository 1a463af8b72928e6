# Every target does the set-up it needs. Folders: ALUSTAN_CACHE (tools), ALUSTAN_DEV_DIR (state of the dev cluster).
.DEFAULT_GOAL := help
.PHONY: help setup cluster-up cluster-down images kubeconfig envtest-assets

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages and build the Go tools that are missing
	@hack/setup

cluster-up: ## bring up the dev cluster: one Kubernetes node, registry, git, DNS
	@hack/cluster/up

cluster-down: ## stop the dev cluster and remove all it made
	@hack/cluster/down

images: ## build the images and push them to the dev cluster's registry
	@hack/images/build

kubeconfig: ## print the path of the dev cluster's kubeconfig
	@hack/cluster/kubeconfig

envtest-assets: ## print a folder with kube-apiserver, etcd and kubectl, for API-level tests
	@hack/tools/envtest-assets
