# Each target performs the set-up that it needs. Folders: ALUSTAN_CACHE (tools), ALUSTAN_DEV_DIR (state of the dev cluster).
.DEFAULT_GOAL := help
.PHONY: help setup demo test full chart api e2e bench bench-page scale soak screenshots profile corpus build gen lint cluster-up cluster-down images install helm-push release-dry-run kubeconfig envtest-assets

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install missing Debian packages and build missing Go tools
	@hack/setup

demo: ## show apply and delete of a resource on the dev cluster, which is started if necessary
	@hack/demo/run

test: ## run all tests, or those whose names contain T, cheapest tier first: make test T=approval
	@hack/test "$(T)"

full: ## run lint, all tests, tests that write gigabytes, the end-to-end tests three times, and a campaign of random faults; takes hours
	@hack/full

chart: ## run tests of the Helm chart and the overlays, without a cluster: make chart T=same
	@hack/chart "$(T)"

api: ## run tests whose names contain T on an API server, without a cluster: make api T=rules
	@hack/api "$(T)"

e2e: ## run end-to-end tests whose names contain T on the dev cluster: make e2e T=delete
	@hack/e2e "$(T)"

bench: ## compare the operator with plain Terraform on the dev cluster
	@hack/bench

bench-page: ## measure the page of `kubectl alustan ui` with N resources and large plans and logs, without a cluster: make bench-page N=10000
	@hack/bench-page $(N)

screenshots: ## write the screenshots of the docs to docs/images
	@hack/screenshots

scale: ## measure the operator with N applied resources on the dev cluster: make scale N=1000
	@hack/scale $(N)

soak: ## inject random faults into the dev cluster for MINUTES while users change 40 resources: make soak MINUTES=30
	@hack/soak $(MINUTES)

profile: ## draw flame graphs of CPU time and heap memory of the operator with N applied resources, without a cluster: make profile N=400
	@hack/profile $(N)

corpus: ## compare closures of modules with the module calls of the engine: make corpus DIR=/path/to/repositories
	@hack/corpus "$(DIR)"

build: ## build the operator and the runner
	@cargo build --locked --workspace --examples --bin alustan-controller --bin alustan-runner

gen: ## generate the CRD, tables of the docs, and the copies and the schema of the chart
	@cargo xtask gen

lint: ## check formatting, clippy, generated files, licences and advisories
	@hack/lint

cluster-up: ## start the dev cluster: one Kubernetes node, registry, git, DNS
	@hack/cluster/up

cluster-down: ## stop the dev cluster and remove everything that it created
	@hack/cluster/down

images: ## build the images and push them to the registry of the dev cluster
	@hack/images/build

install: $(if $(OVERLAY),,build images) ## install the operator in the dev cluster, or an overlay with the current kubeconfig: OVERLAY=prod
	@hack/install $(OVERLAY)

helm-push: ## package the chart and push it: make helm-push REGISTRY=registry.example.com/charts
	@hack/helm-push "$(REGISTRY)"

release-dry-run: ## build all artifacts of a release into dist/ and run their tests, without a push: make release-dry-run PROFILE=dev
	@PROFILE="$(PROFILE)" hack/release/dry-run

kubeconfig: ## print the path of the kubeconfig of the dev cluster
	@hack/cluster/kubeconfig

envtest-assets: ## print a folder with kube-apiserver, etcd and kubectl, for tests on an API server
	@hack/tools/envtest-assets
