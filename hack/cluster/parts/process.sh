# shellcheck shell=bash
# Processes of the cluster. $DEV/run/NAME.pid contains "PID START_TIME": the start time distinguishes a process from a later one with its
# pid.

# start_time PID: prints the kernel's start time of a running process.
start_time() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${stat##*) }" # after the name: from field 3 (state)
  [ "${fields[0]}" != Z ] && echo "${fields[19]}"
}

# pid_of NAME: prints the pid of a running component.
pid_of() {
  local pid start
  read -r pid start 2>/dev/null <"$DEV/run/$1.pid" || return 1
  [ "$(start_time "$pid")" = "$start" ] && echo "$pid"
}

is_up() { pid_of "$1" >/dev/null; }

# parts_cgroup: prints the cgroup of the components, in the hierarchy that accounts CPU time: cpuacct of v1, else v2.
parts_cgroup() {
  awk -v name="$CGROUP-parts" '$3 == "cgroup" && ("," $4 ",") ~ /,cpuacct,/ { v1 = $2 } $3 == "cgroup2" { v2 = $2 }
    END { if (v1 v2 != "") print (v1 != "" ? v1 : v2) "/" name }' /proc/mounts
}

# account NAME: moves this process to the cgroup of the component, which hack/lib/profile reads. Its children stay there. A failure is
# ignored: the profile then reads /proc.
account() {
  local dir
  dir=$(parts_cgroup)
  [ -n "$dir" ] || return 0
  { mkdir -p "$dir/$1" && { echo "$BASHPID" >"$dir/$1/cgroup.procs" || rmdir "$dir/$1"; }; } 2>/dev/null || true
}

# start NAME COMMAND...: runs a component in the network namespace with log $DEV/log/NAME.log, unless it already runs.
start() {
  local name=$1
  shift
  is_up "$name" && return
  # Not `ip netns exec`, which remounts /sys and so hides the cgroup mounts from kubelet. The process outlives its caller and must not hold
  # its locks.
  # GOGC: most components are in Go, and garbage collection would take a fifth of their time to save memory, which is not scarce up to GOMEMLIMIT.
  # With 10,000 resources, the API server would need more memory than a small machine has.
  { account "$name"; GOGC=400 GOMEMLIMIT=8GiB exec setsid nsenter --net="/run/netns/$NETNS" "$@"; } </dev/null >>"$DEV/log/$name.log" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
  echo "$! $(start_time $!)" >"$DEV/run/$name.pid"
}

# reap NAME: kills the children of a component whose first process has died: its process group in the network namespace of the cluster.
reap() {
  local leader pid fields
  read -r leader _ 2>/dev/null <"$DEV/run/$1.pid" || return 0
  [ -e "/run/netns/$NETNS" ] || return 0
  for pid in $(ip netns pids "$NETNS"); do
    fields=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
    read -r _ _ fields _ <<<"${fields##*) }" # state, parent, group
    [ "$fields" != "$leader" ] || kill -KILL "$pid" 2>/dev/null || true
  done
}

# stop NAME...: sends SIGTERM, and SIGKILL after 2 s, because no data needs to be kept. Each component is the leader of a process group.
stop() {
  local name pid deadline=$((SECONDS + 2))
  for name; do
    if pid=$(pid_of "$name"); then kill -TERM -- "-$pid" 2>/dev/null || true; fi
  done
  for name; do
    while pid=$(pid_of "$name"); do
      [ "$SECONDS" -lt "$deadline" ] || kill -KILL -- "-$pid" 2>/dev/null || true
      sleep 0.05
    done
    reap "$name"
    rm -f "$DEV/run/$name.pid"
  done
}

# fail NAME TEXT: prints the end of the component's log, the problem and the remedy, and exits.
fail() {
  [ ! -s "$DEV/log/$1.log" ] || tail -n 12 "$DEV/log/$1.log" | cut -c 1-300 >&2
  die "$1: $2 (log: $DEV/log/$1.log); run make cluster-down, then make cluster-up"
}

# wait_for NAME SECONDS TEXT COMMAND...: waits until the command succeeds. Fails as soon as the component has died.
wait_for() {
  local name=$1 limit=$2 text=$3 deadline=$((SECONDS + $2))
  shift 3
  until "$@" >/dev/null 2>&1; do
    is_up "$name" || fail "$name" "ended before $text"
    [ "$SECONDS" -lt "$deadline" ] || fail "$name" "no $text within $limit s"
    sleep 0.1
  done
}
