#!/usr/bin/env bash
# What a newcomer does, in a Debian 12 that had git and nothing else: both commands of the README, the documented installs and
# all examples, as root and as a plain user with sudo; and what a user without sudo is told. And what one does who was given
# the wheel or the Debian package, in another such root that never sees a compiler. Needs root (debootstrap, chroot).
# usage: fresh.sh <repository> <folder to work in> [packages]; it takes the commit that is checked out, not the working tree;
#        packages: these alone
set -euo pipefail
repository=$1
work=$2
part=${3:-all}
here=$(cd -- "$(dirname -- "$0")" && pwd)
mkdir -p "$work/ccache" "$work/archives" "$work/logs"
chmod 0777 "$work/ccache"
rm -f "$work"/logs/*

say() { printf '==> %s\n' "$*"; }

# The bare root is made once and copied for each run.
if [[ ! -f $work/base.complete ]]; then
  say "Making a bare Debian 12 in $work/base (some minutes)"
  rm -rf --one-file-system "$work/base"
  debootstrap --variant=minbase --include=git,ca-certificates bookworm "$work/base" >"$work/logs/debootstrap" 2>&1 || {
    tail -n 20 "$work/logs/debootstrap"
    echo "error: debootstrap could not make the root; its last words are above"
    exit 1
  }
  touch "$work/base.complete"
fi

# What this machine's way to the network needs: names, certificates, proxies, the settings of pip. Nothing else goes in.
kept=(http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_DEFAULT_TIMEOUT PIP_CERT
  SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE)
new_root() {
  rm -rf --one-file-system "$work/root"
  cp -ax "$work/base" "$work/root"  # -x: whatever may be mounted in it stays out
  local file
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [[ ! -f $file ]] || cp -L "$file" "$work/root$file"
  done
  cp "$here/fresh_steps.sh" "$work/root/srv/"
  cp "$work/attend.bundle" "$work/root/srv/"
  # The mirror's own packages are kept between runs.
  echo 'APT::Keep-Downloaded-Packages "true";' >"$work/root/etc/apt/apt.conf.d/99keep"
}

# enter <user> <command>...: runs in the root, with processes, mounts and an environment of its own
enter() {
  local user=$1 home=/root pass=() name
  shift
  [[ $user == root ]] || home=/home/$user
  for name in "${kept[@]}"; do
    [[ -z ${!name:-} ]] || pass+=("$name=${!name}")
  done
  # shellcheck disable=SC2016  # the inner shell expands them
  unshare --mount --pid --fork --kill-child --mount-proc="$work/root/proc" bash -c '
    set -e
    root=$1 work=$2 user=$3
    shift 3
    mount --rbind /dev "$root/dev"
    mkdir -p "$root/ccache"
    mount --bind "$work/ccache" "$root/ccache"
    mount --bind "$work/archives" "$root/var/cache/apt/archives"
    exec chroot --userspec="$user:$user" --groups="$user" "$root" env -i "$@"' enter "$work/root" "$work" "$user" \
    HOME="$home" USER="$user" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    CCACHE_DIR=/ccache CCACHE_UMASK=000 CCACHE_BASEDIR="$home" CCACHE_NOHASHDIR=1 "${pass[@]}" "$@"
}

# steps <user> <step>...: each with its time; the first that fails ends the run
results=()
steps() {
  local user=$1 step started log
  shift
  for step in "$@"; do
    started=$SECONDS
    log=$work/logs/$user-$step
    if enter "$user" bash /srv/fresh_steps.sh "$step" >"$log" 2>&1; then
      results+=("passed  $user: $step ($((SECONDS - started)) s)")
      say "${results[-1]}"
    else
      tail -n 40 "$log"
      say "FAILED  $user: $step ($((SECONDS - started)) s); all it said is in $log"
      exit 1
    fi
  done
}

# Builds the packages in the root that is there, and uses them in a bare one.
try_packages() {
  steps root wheel deb lintian
  rm -rf "$work/dist"
  cp -a "$work/root/root/attend/dist" "$work/dist"
  new_root
  cp "$work"/dist/* "$work/root/srv/"
  steps root clone no_compiler use_wheel no_compiler install_deb use_deb no_compiler develop_with_deb remove_deb
}

all=(clone demo test install c_pkg_config cpp_pkg_config find_package llm ring fetch_content readme_cpp python readme_python)
say "Fresh: commit $(git -C "$repository" rev-parse --short HEAD)"
[[ -z $(git -C "$repository" status --porcelain) ]] || say "Note: the working tree has changes that are not committed; they are not tried"

git -C "$repository" bundle create -q "$work/attend.bundle" HEAD  # once: it may move meanwhile
new_root
if [[ $part == packages ]]; then
  steps root clone
  try_packages
else
  steps root "${all[@]}"
  try_packages

  new_root
  enter root useradd --create-home --shell /bin/bash user
  steps user clone told_without_sudo
  enter root bash -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends sudo' >"$work/logs/sudo" 2>&1
  echo 'user ALL=(ALL) NOPASSWD: ALL' >"$work/root/etc/sudoers.d/user"
  steps user "${all[@]:1}"
fi

rm -rf --one-file-system "$work/root"
say "Fresh: all passed ($SECONDS s)"
printf '    %s\n' "${results[@]}"
