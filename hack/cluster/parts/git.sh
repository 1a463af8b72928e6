# shellcheck shell=bash
# Git repositories under $DEV/git, over ssh (git@, port 22) and https (web.sh). Both run as $GIT_UID, never as root.

git_start() {
  local dir=$DEV/ssh
  port_free sshd 22
  mkdir -p "$dir" "$DEV/git" "$DEV/run/git"
  [ -e "$dir/known_hosts" ] || git_keys "$dir"
  printf '[uploadpack]\n\tallowAnySHA1InWant = true\n\tallowFilter = true\n' >"$DEV/gitconfig"
  install -m 755 "$ROOT/hack/git/shell" "$dir/shell"
  chown "$GIT_UID:$GIT_UID" "$DEV/git" "$DEV/run/git"
  cat >"$dir/sshd_config" <<E
ListenAddress $NODE_HOST:22
HostKey $dir/host_ed25519
HostKey $dir/host_rsa
AuthorizedKeysFile $dir/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowUsers git
AcceptEnv GIT_PROTOCOL
DisableForwarding yes
PidFile none
MaxStartups 200
ForceCommand $dir/shell $DEV
E
  # sshd needs an account `git` and a folder /run/sshd. It gets both in a separate mount namespace.
  { getent passwd | grep -v '^git:'; echo "git:*:$GIT_UID:$GIT_UID::$DEV/git:/bin/sh"; } >"$dir/passwd"
  # shellcheck disable=SC2016 # expanded by the inner shell
  start sshd unshare --mount --propagation private sh -c '
    mount --bind "$1/passwd" /etc/passwd
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -m 755 /run/sshd
    exec /usr/sbin/sshd -D -e -f "$1/sshd_config"' sh "$dir"
  is_up fcgiwrap || rm -f "$DEV/run/git/fcgi.sock"
  # shellcheck disable=SC2016
  start fcgiwrap setpriv --reuid "$GIT_UID" --regid "$GIT_UID" --clear-groups \
    sh -c 'umask 0; exec fcgiwrap -c 8 -s "unix:$1"' sh "$DEV/run/git/fcgi.sock"
}

# git_keys DIR: creates a key that may fetch and push, the host keys, and a known_hosts file with the host keys.
git_keys() {
  local host
  ssh-keygen -q -t ed25519 -N '' -C alustan-dev -f "$1/id_ed25519"
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$1/host_ed25519"
  ssh-keygen -q -t rsa -b 2048 -N '' -C '' -f "$1/host_rsa"
  cp "$1/id_ed25519.pub" "$1/authorized_keys"
  for host in "${GIT_HOSTS[@]}"; do
    sed "s/^/$host /" "$1/host_ed25519.pub" "$1/host_rsa.pub"
  done >"$1/known_hosts"
}
