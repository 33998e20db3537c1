#!/usr/bin/env bash
# Prints the folder with Debian's runc, CNI plugins, nftables and static busybox: / if they are installed. Otherwise unpacks
# them into the cache and prints that folder. Installs nothing.
#
#   packages.sh [--if-there]    --if-there fetches nothing; it exits with status 3 and lists the missing packages
#
# PILLION_TOOLS names another cache folder.
set -euo pipefail

packages=(runc containernetworking-plugins nftables busybox-static)
complete() { [ -x "$1/usr/sbin/runc" ] && [ -x "$1/usr/lib/cni/bridge" ] && [ -x "$1/usr/sbin/nft" ] && [ -x "$1/bin/busybox" ]; }

if complete /; then
  echo /
  exit
fi
. "$(dirname "${BASH_SOURCE[0]}")/../tools/debian.sh"
folder=$cache/packages-$system
if complete "$folder"; then
  echo "$folder"
  exit
fi
if [ "${1:-}" = --if-there ]; then
  echo "not there: Debian's packages ${packages[*]}" >&2
  exit 3
fi
if ! has_apt; then
  echo "error: the packages ${packages[*]} come from Debian or Ubuntu, but this is $system; to use kind instead, install a container engine" >&2
  exit 2
fi

echo "fetching Debian's ${packages[*]} (once)" >&2
mkdir -p "$cache"
work=$(mktemp -d "$cache/.packages-XXXXXX")
trap 'rm -rf "$work"' EXIT
unpack "$work" "${packages[@]}"
complete "$work/root" || { echo "error: the packages lack expected files: $work" >&2 && exit 1; }
rm -rf "$folder"
mv "$work/root" "$folder"
echo "$folder"
