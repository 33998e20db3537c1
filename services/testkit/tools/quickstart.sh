#!/usr/bin/env bash
# Follows docs/quickstart.md: writes its files, runs its commands, and compares their output with the page, where `…` matches
# any text. Commands whose output is on the page, and commands of `pillion`, are retried for up to two minutes.
#
#   quickstart.sh [SKIPPED]    SKIPPED: an extended regular expression; commands that match it are not run
#
# Needs the programs of the page in PATH, and the KUBECONFIG of a cluster unless the page creates it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
skipped=${1:-^$}
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
cd "$work"
ln -s "$root"/{charts,target} .

# Splits the page into numbered files: the commands of each `sh` block (*.sh), the output of its last command (*.text), and the
# files of `yaml` blocks, which have their names in the first line.
awk '
  /^```/ && !block { block = substr($0, 4); first = 1; if (block == "sh") number++; next }
  /^```/ { close(file); block = file = ""; next }
  block == "sh" { file = sprintf("%03d.sh", number) }
  block == "text" { file = sprintf("%03d.text", number) }
  block == "yaml" && first { file = substr($0, 3) }
  block { print > file; first = 0 }
' "$root/docs/quickstart.md"

# Replaces each run of blanks by one, and removes trailing blanks.
plain() { tr -s ' ' | sed 's/ $//'; }

is_like() { # OUTPUT EXPECTED
  local pattern
  pattern=$(plain <<<"$2" | sed 's/[][*?()\\|!@+]/\\&/g; s/…/*/g')
  # shellcheck disable=SC2053 # the right side is a pattern
  [[ $(plain <<<"$1") == $pattern ]]
}

run() { # COMMAND [EXPECTED]
  local command=$1 expected=${2:-} output status deadline=$((SECONDS + 120))
  echo "\$ $command"
  case $command in export\ *) eval "$command" && return ;; esac
  while :; do
    status=0
    output=$(timeout 600 bash -c "$command" 2>&1) || status=$?
    if [ "$status" = 0 ] && { [ -z "$expected" ] || is_like "$output" "$expected"; }; then
      [ -z "$output" ] || echo "$output"
      return
    fi
    if [ "$SECONDS" -ge "$deadline" ] || { [ -z "$expected" ] && [[ $command != pillion\ * ]]; }; then
      printf 'error: %s (exit code %s) printed:\n%s\n' "$command" "$status" "$output" >&2
      [ -z "$expected" ] || printf 'expected:\n%s\n' "$expected" >&2
      return 1
    fi
    sleep 1
  done
}

ran=0
for block in [0-9]*.sh; do
  mapfile -t commands <"$block"
  last=${commands[-1]}
  for command in "${commands[@]}"; do
    ! grep --quiet --extended-regexp -- "$skipped" <<<"$command" || continue
    expected=
    if [ "$command" = "$last" ] && [ -e "${block%.sh}.text" ]; then expected=$(cat "${block%.sh}.text"); fi
    run "$command" "$expected"
    ran=$((ran + 1))
  done
done
echo "followed docs/quickstart.md: $ran commands"
