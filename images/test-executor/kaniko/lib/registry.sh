# shellcheck shell=sh disable=SC2154
# Trust, credentials and reachability of registries, and errors in kaniko's words.

# repository IMAGE: without tag or digest.
repository() {
  name=${1%%@*}
  case ${name##*/} in *:*) name=${name%:*} ;; esac
  echo "$name"
}

# registry_host IMAGE
registry_host() {
  case $1 in */*) host=${1%%/*} ;; *) host='' ;; esac
  case $host in *.* | *:* | localhost) ;; *) host=docker.io ;; esac
  echo "$host"
}

trust_insecure() { printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' "$1" >>/etc/containers/registries.conf.d/insecure.conf; }

trust_certificate() { # HOST FILE
  mkdir -p "/etc/containers/certs.d/$1"
  cp "$2" "/etc/containers/certs.d/$1/ca.crt" || fail "error building image: open $2: no such file or directory"
}

# Credentials as kaniko finds them: a folder with config.json.
credentials=${DOCKER_CONFIG:-/kaniko/.docker}/config.json
unset DOCKER_CONFIG
[ ! -f "$credentials" ] || export REGISTRY_AUTH_FILE="$credentials"

# check_reach IMAGE PREFIX: the tools below would retry for long.
check_reach() {
  [ "$1" != scratch ] || return 0
  host=$(registry_host "$1")
  case $host in # kaniko takes plain http from these without a flag
    127.0.0.1* | localhost | localhost:* | *.localhost* | 10.* | 192.168.* | 172.1[6-9].* | 172.2[0-9].* | 172.3[01].*) trust_insecure "$host" ;;
  esac
  [ "$host" != docker.io ] || host=registry-1.docker.io
  case $host in *:*) port=${host##*:} ;; *) port=443 ;; esac
  # shellcheck disable=SC2016 # expanded by bash, whose /dev/tcp this needs
  why=$(timeout 10 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "${host%:*}" "$port" 2>&1) && return
  case $why in
    *refused*) fail "$2 Get \"https://$host/v2/\": dial tcp ${host%:*}:$port: connect: connection refused" ;;
    *'not known'* | *'No address'* | *'name resolution'*) fail "$2 Get \"https://$host/v2/\": dial tcp: lookup ${host%:*}: no such host" ;;
    *) fail "$2 Get \"https://$host/v2/\": dial tcp ${host%:*}:$port: i/o timeout" ;;
  esac
}

# check_push: kaniko's check before the build. A tag that nobody has is asked for: "unknown" is a good answer.
check_push() {
  if $no_push || $skip_check; then return; fi
  for to in $destinations; do
    prefix="error checking push permissions: checking push permission for \"$to\":"
    check_reach "$to" "$prefix creating push check transport for $(registry_host "$to") failed:"
    # shellcheck disable=SC2086 # empty or one flag
    skopeo inspect ${push_tls:+--tls-verify=false} --raw "docker://$(repository "$to"):kaniko-push-check" >/kaniko/out.log 2>&1 && continue
    grep -qE 'manifest unknown|name unknown' /kaniko/out.log || fail "$prefix $(cause)"
  done
}

# cause: the last error in /kaniko/out.log as kaniko would say it.
cause() {
  last=$(grep -iE '(^|level=)(fatal|error)' /kaniko/out.log | tail -n 1)
  case $last in
    *unauthorized* | *'authentication required'* | *' 401 '*) echo 'UNAUTHORIZED: authentication required' ;;
    *'manifest unknown'*) echo 'MANIFEST_UNKNOWN: manifest unknown' ;;
    *'name unknown'*) echo 'NAME_UNKNOWN: repository name not known to registry' ;;
    *denied*) echo 'DENIED: requested access to the resource is denied' ;;
    *) echo "$last" | sed 's/.*msg=//; s/\\"/"/g' ;;
  esac
}

# attempts RETRIES COMMAND...: waits 1, 2, 4… seconds in between.
attempts() {
  retries=$1 pause=1
  shift
  until "$@"; do
    [ "$retries" -gt 0 ] || return 1
    log "Retrying in $pause s"
    sleep $pause
    retries=$((retries - 1)) pause=$((pause * 2))
  done
}
