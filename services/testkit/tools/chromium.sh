#!/usr/bin/env bash
# Prints the path of Debian's Chromium, and on a second line the path of its driver. If they are not installed in /usr/bin,
# unpacks them into the cache, with the libraries and fonts that they need. Installs nothing.
#
#   chromium.sh [--if-there]    --if-there fetches nothing; it exits with status 3 and lists the missing packages
#
# PILLION_TOOLS names another cache folder.
set -euo pipefail

packages=(chromium chromium-driver)
# Chromium does not start without fonts. With these, the screenshots in the docs look the same on every machine.
fonts=(fonts-inter fonts-jetbrains-mono)
found() { # FOLDER: prints both paths if both programs exist
  [ -x "$1/chromium" ] && [ -x "$1/chromedriver" ] && printf '%s\n' "$1/chromium" "$1/chromedriver"
}

found /usr/bin && exit
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"
folder=$cache/chromium-$system
found "$folder/bin" && exit
if [ "${1:-}" = --if-there ]; then
  echo "not there: Debian's packages ${packages[*]}" >&2
  exit 3
fi
if ! has_apt; then
  echo "error: the packages ${packages[*]} come from Debian, but this is $system" >&2
  exit 2
fi

mkdir -p "$cache"
# One process at a time: several may find the cache empty at once.
exec 9>"$cache/.chromium-lock"
flock 9
found "$folder/bin" && exit
echo "fetching Debian's ${packages[*]} (once)" >&2
work=$(mktemp -d "$cache/.chromium-XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! unpack "$work" "${packages[@]}" "${fonts[@]}"; then
  echo "error: the packages ${packages[*]} cannot be fetched on this system" >&2
  exit 2
fi
for each in usr/lib/chromium/chromium usr/bin/chromedriver; do
  [ -x "$work/root/$each" ] || { echo "error: the packages lack the expected file $each" >&2 && exit 1; }
done
# Adds these fonts to those of the machine.
cat >"$work/root/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir>$folder/usr/share/fonts</dir>
  <cachedir>$folder/fontcache</cachedir>
</fontconfig>
END
# Some libraries are in separate folders, which only an installed program finds by itself.
libraries=$(cd "$work/root" && find usr/lib -name '*.so*' -printf '%h\n' | sort -u | sed "s|^|$folder/|" | paste -sd:)
mkdir "$work/root/bin"
for program in chromium:usr/lib/chromium/chromium chromedriver:usr/bin/chromedriver; do
  cat >"$work/root/bin/${program%%:*}" <<END
#!/bin/sh
export LD_LIBRARY_PATH="$libraries" FONTCONFIG_FILE="$folder/fonts.conf"
exec "$folder/${program#*:}" "\$@"
END
  chmod +x "$work/root/bin/${program%%:*}"
done
rm -rf "$folder"
mv "$work/root" "$folder"
found "$folder/bin"
