# shellcheck shell=bash
# Two registries on loopback. nginx (web.sh) adds names, ports, TLS and access logs.

registry_start() { # NAME PORT [AUTH]
  port_free "$1" "$2"
  cat >"$DEV/$1.yml" <<E
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $DEV/$1}, delete: {enabled: true}}
http: {addr: "127.0.0.1:$2", relativeurls: true}
${3:-}
E
  start "$1" docker-registry serve "$DEV/$1.yml"
}

registries_start() {
  registry_start registry 5001
  registry_start private-registry 5002 "auth: {htpasswd: {realm: dev, path: $ROOT/hack/cluster/config/htpasswd}}"
}
