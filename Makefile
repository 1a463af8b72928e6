# Every target does the set-up it needs. Folders: ALUSTAN_CACHE (tools), ALUSTAN_DEV_DIR (state of the dev cluster).
.DEFAULT_GOAL := help
.PHONY: help setup demo test full chart api e2e bench build gen lint cluster-up cluster-down images install helm-push release-dry-run kubeconfig envtest-assets

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages and build the Go tools that are missing
	@hack/setup

demo: ## run the main job in front of you, on a dev cluster of its own
	@hack/demo/run

test: ## all tests, or those whose names contain T, the cheapest tier first: make test T=approval
	@hack/test "$(T)"

full: ## lint, all tests, those that write gigabytes, and the end-to-end tests three times: an hour and more
	@hack/full

chart: ## tests of the Helm chart and of the overlays, without a cluster: make chart T=same
	@hack/chart "$(T)"

api: ## tests whose names contain T, on an API server alone: make api T=rules
	@hack/api "$(T)"

e2e: ## end-to-end tests whose names contain T, on the dev cluster: make e2e T=delete
	@hack/e2e "$(T)"

bench: ## measure the operator against bare Terraform on the dev cluster
	@hack/bench

build: ## build the operator and the runner
	@cargo build --locked --workspace --examples --bin alustan-controller --bin alustan-runner

gen: ## write what is generated: the CRD, tables of the docs, the chart's copies and schema
	@cargo xtask gen

lint: ## formatting, clippy, generated files, licences and advisories
	@hack/lint

cluster-up: ## bring up the dev cluster: one Kubernetes node, registry, git, DNS
	@hack/cluster/up

cluster-down: ## stop the dev cluster and remove all it made
	@hack/cluster/down

images: ## build the images and push them to the dev cluster's registry
	@hack/images/build

install: $(if $(OVERLAY),,build images) ## install the operator in the dev cluster, or an overlay by the current kubeconfig: OVERLAY=prod
	@hack/install $(OVERLAY)

helm-push: ## package the chart and push it: make helm-push REGISTRY=registry.example.com/charts
	@hack/helm-push "$(REGISTRY)"

release-dry-run: ## all that a release has, into dist/, and its tests; nothing is pushed: make release-dry-run PROFILE=dev
	@PROFILE="$(PROFILE)" hack/release/dry-run

kubeconfig: ## print the path of the dev cluster's kubeconfig
	@hack/cluster/kubeconfig

envtest-assets: ## print a folder with kube-apiserver, etcd and kubectl, for API-level tests
	@hack/tools/envtest-assets
