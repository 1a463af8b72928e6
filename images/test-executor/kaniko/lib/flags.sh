# shellcheck shell=sh disable=SC2034,SC2154
# Flags of kaniko. DONE ones have an effect here, NOOP ones change nothing in the image, OTHER ones are refused.

BOOL_DONE='insecure insecure-pull no-push skip-push-permission-check skip-tls-verify skip-tls-verify-pull'
BOOL_NOOP='cache cache-copy-layers cache-run-layers cleanup compressed-caching force force-build-metadata ignore-var-run
 log-timestamp materialize no-push-cache pre-cleanup preserve-context push-ignore-immutable-tag-errors reproducible
 single-snapshot skip-default-registry-fallback skip-unused-stages use-new-run'
BOOL_OTHER='dryrun'
VALUE_DONE='annotation build-arg context context-sub-path destination digest-file dockerfile ignore-path image-download-retry
 image-name-tag-with-digest-file image-name-with-digest-file insecure-registry label log-format push-retry
 registry-certificate skip-tls-verify-registry'
VALUE_NOOP='cache-dir cache-repo cache-ttl compression compression-level credential-helpers custom-platform image-format
 image-fs-extract-retry snapshot-mode target verbosity'
VALUE_OTHER='git kaniko-dir oci-layout-path registry-client-cert registry-map registry-mirror secret tar-path'

context=/workspace/ sub_path='' dockerfile=Dockerfile destinations='' log_format=color no_push=false skip_check=false
digest_file='' name_digest_file='' tag_digest_file='' push_retry=0 pull_retry=0 pull_tls='' push_tls='' ignored='/kaniko /var/run /etc/mtab'

# usage TEXT: after such an error kaniko prints all its flags.
usage() {
  printf 'Error: %s\nUsage:\n  executor [flags]\n  executor [command]\n\nFlags:\n' "$*" >&2
  for flag in $BOOL_DONE $BOOL_NOOP $BOOL_OTHER; do printf '      --%s\n' "$flag" >&2; done
  for flag in $VALUE_DONE $VALUE_NOOP $VALUE_OTHER; do printf '      --%s string\n' "$flag" >&2; done
  fail "
$*"
}

is_in() { # ITEM LIST
  for item in $2; do [ "$item" != "$1" ] || return 0; done
  return 1
}

# take_flag ARGUMENT...: the first, with its value. Sets $taken, and $extra (a flag of buildah, or empty) with its $value.
take_flag() {
  argument=$1 taken=1 extra=''
  case $argument in
    -f | -f=*) argument=--dockerfile${argument#-f} ;;
    -c | -c=*) argument=--context${argument#-c} ;;
    -d | -d=*) argument=--destination${argument#-d} ;;
    -v | -v=*) argument=--verbosity${argument#-v} ;;
  esac
  case $argument in
    --?*) ;;
    -?*) usage "unknown shorthand flag: '$(printf %.1s "${argument#-}")' in $argument" ;;
    *) usage "unknown command \"$argument\" for \"executor\"" ;;
  esac
  name=${argument#--}
  name=${name%%=*}
  if is_in "$name" "$BOOL_OTHER $VALUE_OTHER"; then
    fail "error: refused: --$name is a flag of kaniko that this stand-in does not do"
  elif is_in "$name" "$BOOL_DONE $BOOL_NOOP"; then
    case $argument in *=*) value=${argument#*=} ;; *) value=true ;; esac
    take_bool
  elif is_in "$name" "$VALUE_DONE $VALUE_NOOP"; then
    case $argument in
      *=*) value=${argument#*=} ;;
      *)
        [ "$left" -gt 1 ] || usage "flag needs an argument: --$name"
        value=$2 taken=2
        ;;
    esac
    take_value
  else
    usage "unknown flag: --$name"
  fi
}

take_bool() {
  case $value in
    true | TRUE | True | t | T | 1) ;;
    false | FALSE | False | f | F | 0) return ;;
    *) usage "invalid argument \"$value\" for \"--$name\" flag: strconv.ParseBool: parsing \"$value\": invalid syntax" ;;
  esac
  case $name in
    insecure | skip-tls-verify) push_tls=--dest-tls-verify=false ;;
    insecure-pull | skip-tls-verify-pull) pull_tls=--src-tls-verify=false ;;
    no-push) no_push=true ;;
    skip-push-permission-check) skip_check=true ;;
  esac
}

take_value() {
  case $name in
    annotation | label) extra=--$name ;;
    build-arg)
      extra=--build-arg
      printf '%s\n' "$value" >>/kaniko/build-args
      ;;
    context) context=$value ;;
    context-sub-path) sub_path=$value ;;
    destination) destinations="$destinations $value" ;;
    digest-file) digest_file=$value ;;
    dockerfile) dockerfile=$value ;;
    ignore-path) ignored="$ignored $value" ;;
    image-download-retry) pull_retry=$value ;;
    image-name-with-digest-file) name_digest_file=$value ;;
    image-name-tag-with-digest-file) tag_digest_file=$value ;;
    insecure-registry | skip-tls-verify-registry) trust_insecure "$value" ;;
    log-format) log_format=$value ;;
    push-retry) push_retry=$value ;;
    registry-certificate) trust_certificate "${value%%=*}" "${value#*=}" ;;
  esac
}

# find_context: makes $context a folder and $dockerfile an existing file, by kaniko's rules.
find_context() {
  $no_push || [ -n "$destinations" ] || usage 'you must provide --destination, or use --no-push'
  case $context in
    tar://*)
      mkdir -p /kaniko/buildcontext
      tar -xzf "${context#tar://}" -C /kaniko/buildcontext ||
        usage "error resolving source context: open ${context#tar://}: no such file or directory"
      context=/kaniko/buildcontext/$sub_path
      ;;
    dir://*) context=${context#dir://}/$sub_path ;;
    *://*) usage 'error resolving source context: unknown build context prefix provided, please use one of the following: gs://, dir://, tar://, s3://, git://, https://' ;;
  esac
  [ -f "$dockerfile" ] || dockerfile=$context/$dockerfile
  [ -f "$dockerfile" ] ||
    usage 'error resolving dockerfile path: please provide a valid path to a Dockerfile within the build context with --dockerfile'
  for to in $destinations; do
    case $to in *@*) fail "error building image: getting tag for destination: $to: a digest is no destination" ;; esac
    case $(repository "$to") in
      *[!a-z0-9._/:-]*) fail "error building image: getting tag for destination: repository can only contain the characters \`abcdefghijklmnopqrstuvwxyz0123456789_-./\`: $to" ;;
    esac
  done
}
