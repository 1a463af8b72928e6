# shellcheck shell=bash
# local-path-provisioner on the node, and its StorageClass as the default.

storage_start() {
  mkdir -p "$DEV/volumes"
  printf '{"nodePathMap": [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": ["%s"]}]}\n' "$DEV/volumes" >"$DEV/local-path.json"
  POD_NAMESPACE=kube-system start local-path "$(tool_bin local-path-provisioner)/local-path-provisioner" start \
    --kubeconfig "$KUBECONFIG_ADMIN" --config "$DEV/local-path.json" --provisioner-name rancher.io/local-path --namespace kube-system \
    --configmap-name local-path --service-account-name default --helper-image "$TOOLS_IMAGE"
}

storage_manifest() {
  cat <<E
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local-path, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: rancher.io/local-path
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
---
apiVersion: v1
kind: ConfigMap
metadata: {name: local-path, namespace: kube-system}
data:
  setup: |
    #!/bin/sh
    mkdir -m 0777 -p "\$VOL_DIR"
  teardown: |
    #!/bin/sh
    rm -rf "\$VOL_DIR"
  helperPod.yaml: |
    apiVersion: v1
    kind: Pod
    metadata: {name: helper-pod}
    spec:
      containers: [{name: helper-pod, image: "$TOOLS_IMAGE", imagePullPolicy: IfNotPresent}]
E
}
