# Runs a program for as long as standard input stays open: leash.sh PROGRAM [ARGUMENT…].
# When the test that holds the other end is over, in whatever way, the program is ended, too, and
# FOLDER, where it is set, is removed with all that it kept there.
"$@" </dev/null &
program=$!
read -r _
kill -"${SIGNAL:-KILL}" "$program" 2>/dev/null
wait
if [ -n "${FOLDER:-}" ]; then rm -rf "$FOLDER"; fi
