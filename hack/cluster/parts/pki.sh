# shellcheck shell=bash
# One CA per cluster: API server, kubelet, clients, and https of registry and git. Pods have it in ConfigMap kube-root-ca.crt.

# certificate NAME SUBJECT [SAN]
certificate() {
  local name=$1 subject=$2 san=${3:-}
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$name.key" -subj "$subject" 2>/dev/null |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$name.crt" \
      -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "$san" ] || echo "subjectAltName=$san") 2>/dev/null
}

# kubeconfig NAME FILE: writes a kubeconfig with embedded certificates, so that it can be copied.
kubeconfig() {
  cat >"$2" <<E
apiVersion: v1
kind: Config
clusters: [{name: alustan-dev, cluster: {server: "https://$NODE_HOST:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: alustan-dev, context: {cluster: alustan-dev, user: $1}}]
current-context: alustan-dev
E
  chmod 600 "$2"
}

pki_up() (
  local names=("${DEV_HOSTS[@]}" "${GIT_HOSTS[@]:1}" "${DOCKER_HOSTS[@]}" "${AWS_NAMES[@]}") user
  [ ! -e "$DEV/pki/complete" ] || return 0
  cd "$DEV/pki" || return
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 365 \
    -subj "/CN=alustan dev CA" -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature 2>/dev/null
  openssl ecparam -genkey -name prime256v1 -noout -out sa.key
  openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
  certificate apiserver /CN=kube-apiserver \
    "IP:$NODE_IP,IP:127.0.0.1,IP:$API_SERVICE_IP,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  certificate web "/CN=alustan dev services" "IP:$NODE_IP$(printf ',DNS:%s' "${names[@]}")"
  certificate admin /O=system:masters/CN=admin
  certificate controller-manager /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  certificate proxy /CN=system:kube-proxy
  certificate kubelet "/O=system:nodes/CN=system:node:$NODE" "IP:$NODE_IP,DNS:$NODE"
  for user in controller-manager scheduler proxy kubelet; do kubeconfig "$user" "$user.conf"; done
  kubeconfig admin "$KUBECONFIG_ADMIN"
  cp ca.crt "$DEV/ca.crt"
  touch complete
)
