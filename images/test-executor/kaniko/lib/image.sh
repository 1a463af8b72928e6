# shellcheck shell=sh disable=SC2154,SC2016
# The image: buildah makes the layers of the copies on the base's configuration without its files, which a copy does not need
# (its vfs storage would copy them again for every step); then the base's layers, as they are in the registry, go in front.

OCI=/kaniko/oci
# Already confined: buildah shall not make a user namespace of its own, which RuntimeDefault seccomp forbids.
export _CONTAINERS_USERNS_CONFIGURED='done' _CONTAINERS_ROOTLESS_UID=1000 BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs TMPDIR=/kaniko

blob() { echo "$OCI/blobs/sha256/${1#sha256:}"; }

# store_blob: the standard input. Prints digest and size.
store_blob() {
  file=$(mktemp /kaniko/blob.XXXXXX)
  cat >"$file"
  sum=$(sha256sum <"$file" | cut -d ' ' -f 1)
  wc -c <"$file" | sed "s/^/sha256:$sum /"
  mv "$file" "$(blob "$sum")"
}

# name_manifest NAME: a manifest on the standard input becomes OCI:NAME. Prints its digest.
name_manifest() {
  # shellcheck disable=SC2046 # two words
  set -- "$1" $(store_blob)
  jq -c --arg name "$1" --arg digest "$2" --argjson size "$3" '
    .manifests |= map(select(.annotations["org.opencontainers.image.ref.name"] != $name)) +
      [{mediaType: "application/vnd.oci.image.manifest.v1+json", $digest, $size, annotations: {"org.opencontainers.image.ref.name": $name}}]' \
    $OCI/index.json >/kaniko/index.json
  mv /kaniko/index.json $OCI/index.json
  echo "$2"
}

manifest() { # NAME
  blob "$(jq -r --arg name "$1" '.manifests[] | select(.annotations["org.opencontainers.image.ref.name"] == $name).digest' $OCI/index.json)"
}

config() { blob "$(jq -r .config.digest "$(manifest "$1")")"; } # NAME

# with_config NAME CONFIG_FILTER MANIFEST_FILTER [JQ_FLAG...]: image NAME changed by the filters. Prints the manifest.
with_config() {
  from=$1 config_filter=$2 manifest_filter=$3
  shift 3
  jq -c "$@" "$config_filter" "$(config "$from")" | store_blob >/kaniko/config-blob
  read -r config_digest config_size </kaniko/config-blob
  jq -c "$@" --arg digest "$config_digest" --argjson size "$config_size" "$manifest_filter | .config.digest = \$digest | .config.size = \$size" "$(manifest "$from")"
}

# base_image: of the FROM line, with build arguments put in.
base_image() {
  touch /kaniko/build-args
  dockerfile_lines | awk '
    FILENAME != "-" { split($0, pair, "="); given[pair[1]] = substr($0, length(pair[1]) + 2); next }
    toupper($1) == "ARG" { split($2, pair, "="); value[pair[1]] = pair[1] in given ? given[pair[1]] : substr($2, length(pair[1]) + 2) }
    toupper($1) == "FROM" {
      for (i = 2; $i ~ /^--/; i++) ;
      image = $i
      for (name in value) { gsub("[$][{]" name "[}]", value[name], image); gsub("[$]" name, value[name], image) }
      print image
      exit
    }' /kaniko/build-args - >/kaniko/base-name
  grep . /kaniko/base-name || fail 'error building image: parsing dockerfile: could not parse reference: no FROM'
}

fetch_base() {
  [ "$1" != scratch ] || return 0
  attempts "$pull_retry" download "$1" ||
    fail "error building image: unable to complete operation after $pull_retry attempts, last error: GET $(repository "$1"): $(cause)"
  with_config base '.rootfs.diff_ids = [] | .history = []' '.layers = []' | name_manifest empty >/dev/null
  buildah pull -q "oci:$OCI:empty" >/kaniko/base-id 2>/kaniko/out.log || fail "error building image: $(cause)"
}

# shellcheck disable=SC2086 # empty or one flag
download() { skopeo copy -q $pull_tls "docker://$1" "oci:$OCI:base" >/kaniko/out.log 2>&1; }

# build_layers FLAG_OF_BUILDAH...: one layer for each copy; without times, so that the same files are the same layer.
build_layers() {
  [ ! -s /kaniko/base-id ] || set -- --from "$(cat /kaniko/base-id)" "$@"
  if ! buildah bud --layers --timestamp 0 --iidfile /kaniko/image-id -f "$dockerfile" "$@" "$context" >/kaniko/steps.log 2>/kaniko/out.log; then
    cat /kaniko/steps.log /kaniko/out.log >&2
    fail "error building image: error building stage: failed to execute command: $(cause)"
  fi
  cat /kaniko/steps.log >&2
  buildah push -q "$(cat /kaniko/image-id)" "oci:$OCI:copies" >/kaniko/out.log 2>&1 || fail "error building image: $(cause)"
}

# assemble: the base's layers, then those of the copies. Sets $digest.
assemble() {
  if [ -s /kaniko/base-id ]; then
    jq -c '{history: (.history // []), diff_ids: .rootfs.diff_ids}' "$(config base)" >/kaniko/base-config
    jq -c .layers "$(manifest base)" >/kaniko/base-layers
  else
    echo '{"history": [], "diff_ids": []}' >/kaniko/base-config
    echo '[]' >/kaniko/base-layers
  fi
  digest=$(with_config copies '.rootfs.diff_ids |= $base[0].diff_ids + . | .history |= $base[0].history + .' \
    '.layers |= $layers[0] + . | del(.annotations["org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"])' \
    --slurpfile base /kaniko/base-config --slurpfile layers /kaniko/base-layers | name_manifest final)
}

# write_digest DIGEST
write_digest() {
  names='' tags=''
  for to in $destinations; do
    names="$names$(repository "$to")@$1
" tags="$tags$to@$1
"
  done
  [ -z "$tag_digest_file" ] || names=$tags # as kaniko: with both files, both are tagged
  [ -z "$digest_file" ] || printf %s "$1" >"$digest_file"
  [ -z "$name_digest_file" ] || printf %s "$names" >"$name_digest_file"
  [ -z "$tag_digest_file" ] || printf %s "$tags" >"$tag_digest_file"
}

push_image() {
  for to in $destinations; do
    log "Pushing image to $to"
    attempts "$push_retry" upload "$to" || fail "error pushing image: failed to push to destination $to: $(cause)"
    log "Pushed $(repository "$to")@$digest"
  done
}

# shellcheck disable=SC2086 # empty or one flag
upload() { skopeo copy -q --preserve-digests $push_tls "oci:$OCI:final" "docker://$1" >/kaniko/out.log 2>&1; }
