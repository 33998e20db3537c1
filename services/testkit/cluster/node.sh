#!/usr/bin/env bash
# Starts and stops a cluster of one node in Linux namespaces of its own (mount, network, process, IPC, host name, cgroup).
#
#   node.sh start HOME    starts the node with HOME/node.env, HOME/etc and HOME/images, which must exist; keeps HOME/state
#   node.sh stop HOME     ends all processes of the node, and removes its cgroups and its link; keeps HOME/state
#
# If OWNED is set, the node ends when the standard input of `start` closes. While the node runs, the machine has cgroups with
# its name (v1: below the caller's cgroup in each hierarchy; v2: below the root), and a link with its name and one address.
# HOME/run lists them. Cgroups and links of other clusters are neither used nor removed. Needs root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
action=${1:?start or stop}
home=${2:?the folder of the cluster}
# shellcheck source=/dev/null
. "$home/node.env" # LINK, HOST_ADDRESS, CGROUP and the variables of init.sh

# Prints the hierarchies of cgroup v1, as CONTROLLERS:PATH of the caller's cgroup. Prints nothing if there is only v2.
hierarchies() { awk -F: '$2 != "" { sub(/^name=/, "", $2); print $2 ":" $3 }' /proc/self/cgroup; }

# Creates a cgroup and records it in HOME/run. Removes a leftover cgroup of the same name if it has no process.
make_cgroup() { # FOLDER
  if [ -d "$1" ]; then
    [ -z "$(find "$1" -name cgroup.procs -exec cat {} + 2>/dev/null | head -1)" ] ||
      { echo "error: a cluster with this name already runs from another folder: there are processes in $1" >&2 && exit 1; }
    find "$1" -depth -type d -exec rmdir {} +
  fi
  mkdir "$1"
  echo "$1" >>"$home/run/cgroups"
}

# Creates one cgroup in each hierarchy of v1, below the caller's cgroup, so that the caller's limits and accounting apply.
make_cgroups() {
  local each controllers parent group
  : >"$home/run/cgroups"
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    # v2: below the root, because the caller's cgroup has processes and so cannot delegate controllers.
    for each in cpu cpuset io memory pids; do echo "+$each" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true; done
    make_cgroup "/sys/fs/cgroup/$CGROUP"
    return
  fi
  for each in $(hierarchies); do
    controllers=${each%%:*}
    parent=/sys/fs/cgroup/$controllers${each#*:}
    group=${parent%/}/$CGROUP
    make_cgroup "$group"
    case ",$controllers," in
      *,cpuset,*)
        # Processes can join a cpuset cgroup only once both files have values.
        cat "$parent/cpuset.cpus" >"$group/cpuset.cpus"
        cat "$parent/cpuset.mems" >"$group/cpuset.mems"
        echo 1 >"$group/cgroup.clone_children"
        ;;
    esac
  done
}

# Prints the id of the node's process 1. Fails if the node does not run.
init_of() {
  local process
  process=$(cat "$home/run/init.pid" 2>/dev/null) || return 1
  [ -r "/proc/$process/cmdline" ] || return 1
  # Another process may have reused the id.
  case $(tr '\0' ' ' <"/proc/$process/cmdline" 2>/dev/null) in
    "bash "*"/init.sh $home "*) echo "$process" ;;
    *) return 1 ;;
  esac
}

start() {
  local parent process='' attempt
  ! init_of >/dev/null || { echo "error: the node runs already" >&2 && exit 1; }
  mkdir -p "$home"/{run,log,state}
  [ -z "$(ip -4 -o address show to "$HOST_ADDRESS/30")" ] ||
    { echo "error: another link has an address in $HOST_ADDRESS/30; end the cluster that uses it, or remove this one" >&2 && exit 1; }
  make_cgroups
  # The process joins the cgroups before it creates namespaces, so that they are the roots of the node's cgroup namespace. It
  # keeps the caller's standard input, which closes when the owner ends, and no other open file.
  (
    while read -r group; do echo $BASHPID >"$group/cgroup.procs"; done <"$home/run/cgroups"
    exec setsid unshare --mount --propagation private --net --pid --ipc --uts --cgroup --fork --kill-child --mount-proc \
      bash "$here/init.sh" "$home"
  ) <&0 >"$home/log/init.log" 2>&1 &
  parent=$!
  for attempt in $(seq 100); do
    process=$(tr -d ' ' <"/proc/$parent/task/$parent/children" 2>/dev/null || true)
    [ -z "$process" ] || [ "$(readlink "/proc/$process/ns/net")" = "$(readlink /proc/self/ns/net)" ] || break
    process=
    sleep 0.1
  done
  [ -n "$process" ] || { echo "error: cannot create namespaces: $(tail -3 "$home/log/init.log")" >&2 && exit 1; }
  echo "$process" >"$home/run/init.pid"
  # This link is the only connection of host and node, and neither side has a route beyond it. init.sh waits for the link.
  ip link add "$LINK" type veth peer name eth0 netns "$process"
  echo "$LINK" >"$home/run/link"
  ip address add "$HOST_ADDRESS/30" dev "$LINK"
  ip link set "$LINK" up
}

stop() {
  local process='' group attempt
  if process=$(init_of); then
    # All processes of its PID namespace end with process 1. The mounts and the network end with the last process.
    kill -KILL "$process"
    for attempt in $(seq "${STOP_TENTHS:-200}"); do
      [ -e "/proc/$process" ] || break
      sleep 0.1
    done
    # HOME/run stays, so that another `stop` can continue.
    [ ! -e "/proc/$process" ] || { echo "error: process $process of the node does not end" >&2 && exit 1; }
  fi
  [ ! -e "$home/run/link" ] || ip link delete "$LINK" 2>/dev/null || true
  [ ! -e "$home/run/cgroups" ] || while read -r group; do
    # A cgroup stays busy for a moment after its last process has ended.
    for attempt in $(seq 50); do
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    [ ! -d "$group" ] || echo "warning: $group is still there" >&2
  done <"$home/run/cgroups"
  rm -rf "${home:?}/run"
}

case $action in
  start | stop) "$action" ;;
  *) echo "error: '$action' is neither start nor stop" >&2 && exit 2 ;;
esac
