# shellcheck shell=bash
# etcd, API server, controller manager and scheduler.

kubectl() { KUBECACHEDIR=$DEV/kube-cache "$KUBE/kubectl" --kubeconfig "$KUBECONFIG_ADMIN" "$@"; }

api_start() {
  port_free etcd 2379 2380
  port_free apiserver 6443
  # No fsync: the data of a dev cluster need not survive a power failure.
  start etcd "$(tool_bin etcd)/etcd" --data-dir "$DEV/etcd" --unsafe-no-fsync --log-level warn --quota-backend-bytes=8589934592 \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  start apiserver "$KUBE/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --bind-address="$ANY_IP" --advertise-address="$NODE_IP" --secure-port=6443 \
    --tls-cert-file="$DEV/pki/apiserver.crt" --tls-private-key-file="$DEV/pki/apiserver.key" --client-ca-file="$DEV/pki/ca.crt" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$DEV/pki/sa.pub" \
    --service-account-signing-key-file="$DEV/pki/sa.key" --service-cluster-ip-range="$SERVICE_CIDR" \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged --profiling=false \
    --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority="$DEV/pki/ca.crt" \
    --kubelet-client-certificate="$DEV/pki/admin.crt" --kubelet-client-key="$DEV/pki/admin.key" \
    --audit-policy-file="$ROOT/hack/cluster/config/audit-policy.yaml" --audit-log-path="$DEV/log/audit.jsonl" --audit-log-maxsize=8000
}

api_wait() {
  is_up etcd || fail etcd "ended"
  wait_for apiserver 60 "API server ready" kubectl get --raw /readyz
}

controllers_start() {
  start controller-manager "$KUBE/kube-controller-manager" --kubeconfig="$DEV/pki/controller-manager.conf" --leader-elect=false \
    --service-account-private-key-file="$DEV/pki/sa.key" --root-ca-file="$DEV/pki/ca.crt" --use-service-account-credentials --profiling=false \
    --flex-volume-plugin-dir="$DEV/kubelet/volume-plugins" \
    --kube-api-qps="${CONTROLLER_QPS:-20}" --kube-api-burst="$((${CONTROLLER_QPS:-20} * 3 / 2))"
  start scheduler "$KUBE/kube-scheduler" --kubeconfig="$DEV/pki/scheduler.conf" --leader-elect=false --profiling=false
}
