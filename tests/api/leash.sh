# Runs PROGRAM until standard input is closed: leash.sh PROGRAM [ARGUMENT…]. The test holds the other
# end of the pipe, so PROGRAM ends with the test program, also if that crashes. SIGNAL is the signal
# that ends PROGRAM (default: KILL). Then the processes that PROGRAM started and that are still in the
# process group of this script end, and the folder FOLDER is removed, if it is set.
"$@" </dev/null &
program=$!
read -r _
kill -"${SIGNAL:-KILL}" "$program" 2>/dev/null
wait
trap '' TERM
kill -TERM 0
if [ -n "${FOLDER:-}" ]; then
  # Processes that are ending may still write files.
  tries=0
  until rm -rf "$FOLDER" 2>/dev/null || [ "$tries" -ge 50 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
fi
