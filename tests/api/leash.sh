# Runs PROGRAM until standard input is closed: leash.sh PROGRAM [ARGUMENT…]. The test holds the other
# end of the pipe, so PROGRAM ends with the test program, also if that crashes. SIGNAL is the signal
# that ends PROGRAM (default: KILL). Then the folder FOLDER is removed, if it is set.
"$@" </dev/null &
program=$!
read -r _
kill -"${SIGNAL:-KILL}" "$program" 2>/dev/null
wait
if [ -n "${FOLDER:-}" ]; then rm -rf "$FOLDER"; fi
