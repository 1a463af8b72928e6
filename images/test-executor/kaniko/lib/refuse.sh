# shellcheck shell=sh disable=SC2154
# What would not do with kaniko is refused: a pod with more rights than kaniko's, and a copy that kaniko would lose.

# CHOWN DAC_OVERRIDE FOWNER FSETID SETGID SETUID SETFCAP, and SYS_CHROOT, which buildah needs and baseline allows.
ALLOWED_CAPABILITIES=$(((1 << 0) | (1 << 1) | (1 << 3) | (1 << 4) | (1 << 6) | (1 << 7) | (1 << 31) | (1 << 18)))

refuse_pod() {
  [ "$(id -u)" = 0 ] || fail 'error building image: kaniko must run as uid 0: chown /: operation not permitted'
  for set in CapEff CapPrm CapBnd; do
    held=$(awk -v set="$set:" '$1 == set { print $2 }' /proc/self/status)
    [ $((0x$held & ~ALLOWED_CAPABILITIES)) -eq 0 ] ||
      fail "error: refused: more capabilities than kaniko's pod needs ($set $held): drop ALL, then add CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETFCAP, SETGID, SETUID, SYS_CHROOT"
  done
  [ $$ -eq 1 ] || fail 'error: refused: the container shares a process namespace (hostPID or shareProcessNamespace)'
  for link in /sys/class/net/*; do
    case ${link##*/} in lo | eth0) ;; *) fail 'error: refused: the container is in the host network (hostNetwork)' ;; esac
  done
  (: >/kaniko/Dockerfile) 2>/dev/null || fail 'error building image: open /kaniko/Dockerfile: read-only file system'
}

# dockerfile_lines: one instruction a line, without comments.
dockerfile_lines() { awk '/^[ \t]*(#|$)/ { next } { line = line $0 } sub(/\\[ \t]*$/, " ", line) { next } { print line; line = "" }' "$dockerfile"; }

# copies: a line "DESTINATION<tab>SOURCE" for each source of each COPY and ADD.
copies() {
  dockerfile_lines | awk '{
    gsub(/[][",\t]/, " ")
    $0 = $0
    if (toupper($1) == "WORKDIR") workdir = $2 ~ /^\// ? $2 : workdir "/" $2
    if (toupper($1) !~ /^(COPY|ADD)$/) next
    to = $NF ~ /^\// ? $NF : workdir "/" $NF
    for (first = 2; $first ~ /^--/; first++) ;
    for (i = first; i < NF; i++) printf "%s\t%s\n", to, $i
  }'
}

refuse_dockerfile() {
  bad=$(dockerfile_lines | awk 'toupper($1) == "FROM" && ++stages > 1 || toupper($1) == "RUN" || toupper($2) ~ /^--FROM=/ || toupper($1) == "ADD" && /:\/\// { print; exit }')
  [ -z "$bad" ] || fail "error building image: refused: this stand-in builds one stage that only copies, not: $bad"
  invisible="$(awk '$5 != "/" { print $5 }' /proc/self/mountinfo) $ignored"
  copies | while IFS='	' read -r to from; do
    refuse_copy "$to" "$from"
  done || exit 1
}

# refuse_copy DESTINATION SOURCE: kaniko leaves out of the image whatever lies under a mount or an ignored path.
refuse_copy() {
  case $1 in
    *'$'*) fail "error building image: refused: this stand-in cannot check the variable in COPY destination $1" ;;
    /bin | /bin/* | /sbin | /sbin/* | /lib | /lib[0-9x/]*)
      fail "error building image: refused: $1 is a link in Debian's images: copy below /usr" ;;
    */bin | */sbin | */lib | */etc | */opt | */tmp | */share | /usr/local)
      [ ! -f "$context/$2" ] || fail "error building image: refused: end the folder of COPY to $1 with a slash" ;;
  esac
  path=$(realpath -ms "$1")
  for hidden in $invisible; do
    case $path/ in
      "$hidden"/*) fail "error building image: refused: COPY to $1 is under the mount or ignored path $hidden: kaniko would leave it out of the image" ;;
    esac
    case $hidden in
      "${path%/}"/*)
        [ ! -e "$context/$2/${hidden#"${path%/}"/}" ] ||
          fail "error building image: refused: COPY to $1 reaches into the mount or ignored path $hidden: kaniko would leave that out of the image"
        ;;
    esac
  done
}
