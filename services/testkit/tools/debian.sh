# shellcheck shell=bash
# Unpacks Debian packages without installing them. Sourced by the scripts that print paths of programs in such packages.

cache=${PILLION_TOOLS:-${XDG_CACHE_HOME:-${HOME:?no folder for the cache: set PILLION_TOOLS}/.cache}/pillion/tools}
system=$(. /etc/os-release 2>/dev/null && echo "${ID:-unknown}-${VERSION_ID:-rolling}")

# Whether this machine can fetch packages.
has_apt() { command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; }

# Unpacks packages into WORK/root, with the libraries that are missing or only partly installed. Package lists and archives
# are kept in WORK, so the state of apt on this machine does not change.
unpack() { # WORK PACKAGE...
  local work=$1 options each
  shift
  mkdir -p "$work"/{lists,archives}/partial "$work/root"
  options=(-qq -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives" -o APT::Sandbox::User=root)
  options+=(-o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30)
  apt-get "${options[@]}" update >&2 || return
  apt-get "${options[@]}" install -y --reinstall --download-only --no-install-recommends "$@" >&2 || return
  for each in "$work"/archives/*.deb; do dpkg-deb --extract "$each" "$work/root" || return; done
}
