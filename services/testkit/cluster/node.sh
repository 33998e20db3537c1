#!/usr/bin/env bash
# Starts and stops a cluster of one node in Linux namespaces of its own (mount, network, process, IPC, host name, cgroup).
#
#   node.sh start HOME    HOME/node.env, HOME/etc and HOME/images are there; what HOME/state holds is gone on with
#   node.sh stop HOME     ends every process of it, and removes its cgroups and its link; HOME/state stays
#
# Where OWNED is set, the node ends when the standard input of `start` does. On the machine there are, while it is up: cgroups
# of its name (in each hierarchy of v1 below the caller's own; with v2 below the root), and a link of its name with one address.
# Those of another cluster, whoever's it is, are neither used nor removed: HOME/run tells which ones are its own. Needs root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
action=${1:?start or stop}
home=${2:?the folder of the cluster}
# shellcheck source=/dev/null
. "$home/node.env" # LINK, HOST_ADDRESS, CGROUP and what init.sh needs

# The hierarchies of cgroup v1, as CONTROLLERS:PATH of the caller's own; nothing where there is only v2.
hierarchies() { awk -F: '$2 != "" { sub(/^name=/, "", $2); print $2 ":" $3 }' /proc/self/cgroup; }

# Makes a cgroup and notes it. What is left of another node of the name is removed, if no process is in it.
make_cgroup() { # FOLDER
  if [ -d "$1" ]; then
    [ -z "$(find "$1" -name cgroup.procs -exec cat {} + 2>/dev/null | head -1)" ] ||
      { echo "error: a cluster of this name runs already, of another folder: there are processes in $1" >&2 && exit 1; }
    find "$1" -depth -type d -exec rmdir {} +
  fi
  mkdir "$1"
  echo "$1" >>"$home/run/cgroups"
}

# Makes one cgroup in each hierarchy of v1, below the caller's own so that its limits and its accounting hold.
make_cgroups() {
  local each controllers parent group
  : >"$home/run/cgroups"
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    # With v2 below the root, where controllers can be passed on: the caller's own has processes, and may not do that.
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
        # Nothing may join before it has both.
        cat "$parent/cpuset.cpus" >"$group/cpuset.cpus"
        cat "$parent/cpuset.mems" >"$group/cpuset.mems"
        echo 1 >"$group/cgroup.clone_children"
        ;;
    esac
  done
}

# Process 1 of the node, if it runs.
init_of() {
  local process
  process=$(cat "$home/run/init.pid" 2>/dev/null) || return 1
  [ -r "/proc/$process/cmdline" ] || return 1
  # Its id may belong to another since.
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
    { echo "error: another link has an address of $HOST_ADDRESS/30; end the cluster that it is of, or remove this one" >&2 && exit 1; }
  make_cgroups
  # The one that unshares joins the cgroups first: they are the root of what the node sees. Its standard input tells who owns
  # the node, and of the caller's other files it keeps none.
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
  [ -n "$process" ] || { echo "error: no namespaces: $(tail -3 "$home/log/init.log")" >&2 && exit 1; }
  echo "$process" >"$home/run/init.pid"
  # Host and node meet here and nowhere else: no route leads on from either side. The node waits for it.
  ip link add "$LINK" type veth peer name eth0 netns "$process"
  echo "$LINK" >"$home/run/link"
  ip address add "$HOST_ADDRESS/30" dev "$LINK"
  ip link set "$LINK" up
}

stop() {
  local process='' group attempt
  if process=$(init_of); then
    # Everything in its process namespace goes with it, and mounts and network with the namespaces.
    kill -KILL "$process"
    for attempt in $(seq "${STOP_TENTHS:-200}"); do
      [ -e "/proc/$process" ] || break
      sleep 0.1
    done
    # What it is known by stays: another `stop` can go on.
    [ ! -e "/proc/$process" ] || { echo "error: process $process of the node does not end" >&2 && exit 1; }
  fi
  [ ! -e "$home/run/link" ] || ip link delete "$LINK" 2>/dev/null || true
  [ ! -e "$home/run/cgroups" ] || while read -r group; do
    # A cgroup stays busy for a moment after its last process.
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
