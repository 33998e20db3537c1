#!/usr/bin/env bash
# Runs as process 1 of a cluster's node. When it ends, all processes of the node end. See node.sh.
set -euo pipefail

home=${1:?the folder of the cluster}
# shellcheck source=/dev/null
. "$home/node.env" # ADDRESS, SERVICES, BIN, PACKAGES, OWNED
export PATH=$BIN:$PACKAGES/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin
libraries=$PACKAGES/usr/lib/$(uname -m)-linux-gnu
[ "$PACKAGES" = / ] || export LD_LIBRARY_PATH=$libraries
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy
cd "$home"

# Signals from processes of the node reach process 1 only if it handles them.
trap 'exit 0' TERM
# Standard input closes when the owner of the node ends. Then the node ends too.
[ -z "${OWNED:-}" ] || { (cat >/dev/null && kill -TERM 1) <&0 & }

hostname node
mount -t sysfs sysfs /sys # shows the network namespace of the node
if [ -n "$(awk -F: '$2 != ""' /proc/self/cgroup)" ]; then
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  while IFS=: read -r _ controllers _; do
    [ -n "$controllers" ] || continue
    mkdir "/sys/fs/cgroup/${controllers#name=}"
    case $controllers in
      name=*) mount -t cgroup -o "none,$controllers" cgroup "/sys/fs/cgroup/${controllers#name=}" ;;
      *) mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/$controllers" ;;
    esac
    for each in ${controllers//,/ }; do
      [ -e "/sys/fs/cgroup/${each#name=}" ] || ln -s "$controllers" "/sys/fs/cgroup/$each"
    done
  done </proc/self/cgroup
else
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  # A cgroup that delegates controllers must not contain processes.
  mkdir /sys/fs/cgroup/init
  echo 1 >/sys/fs/cgroup/init/cgroup.procs
  for each in $(cat /sys/fs/cgroup/cgroup.controllers); do
    echo "+$each" >/sys/fs/cgroup/cgroup.subtree_control || true
  done
fi
for each in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$each"; done
mkdir -p /run/lock /run/netns /var/lib/{cni,kubelet} /var/log/{pods,containers} state/{etcd,containerd,kubelet,cni,pods,own}
mount --bind state/cni /var/lib/cni
mount --bind state/kubelet /var/lib/kubelet
mount --bind state/pods /var/log/pods
# These sysctls belong to the whole machine. kubelet sets them, so it gets copies that have no effect.
for each in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_max{keys,bytes}; do
  cat "/proc/sys/$each" >"state/own/${each//\//.}"
  mount --bind "state/own/${each//\//.}" "/proc/sys/$each"
done
# Mounts of pods propagate within this mount namespace, and not to the machine.
mount --make-rshared /

for _ in $(seq 600); do
  [ ! -e /sys/class/net/eth0 ] || break
  sleep 0.05
done
ip link set lo up
ip address add "$ADDRESS/30" dev eth0
ip link set eth0 up
# Packets to a Service need a route before kube-proxy redirects them to a pod. There is no route to any other network.
ip route add "$SERVICES" dev eth0
echo 1 >/proc/sys/net/ipv4/ip_forward

# Starts a program, and restarts it whenever it ends.
keep() { # NAME COMMAND...
  local name=$1
  shift
  (
    while :; do
      "$@" >>"log/$name.log" 2>&1 </dev/null || echo "== $name has ended: $?" >>"log/$name.log"
      sleep 1
    done
  ) &
}
tried() { # COMMAND...: repeats the command until it succeeds
  for _ in $(seq 1200); do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  echo "error: no success after many attempts: $*"
  return 1
}

keep containerd containerd --config etc/containerd.toml
keep etcd etcd --data-dir=state/etcd --unsafe-no-fsync --listen-client-urls=http://127.0.0.1:2379 \
  --advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380
keep kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 "--advertise-address=$ADDRESS" \
  --tls-cert-file=etc/apiserver.crt --tls-private-key-file=etc/apiserver.key \
  --client-ca-file=etc/ca.crt --token-auth-file=etc/tokens.csv \
  --kubelet-certificate-authority=etc/ca.crt --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate=etc/kubelet-client.crt --kubelet-client-key=etc/kubelet-client.key \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file=etc/service-accounts.crt --service-account-signing-key-file=etc/service-accounts.key \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  "--service-cluster-ip-range=$SERVICES"
keep kube-controller-manager kube-controller-manager --kubeconfig=etc/controller-manager.kubeconfig --root-ca-file=etc/ca.crt \
  --service-account-private-key-file=etc/service-accounts.key --use-service-account-credentials=true --leader-elect=false
keep kube-scheduler kube-scheduler --kubeconfig=etc/scheduler.kubeconfig --leader-elect=false

tried ctr version
for image in images/*.tar; do ctr --namespace k8s.io images import "$image"; done
tried kubectl --kubeconfig etc/kubelet.kubeconfig get --raw /readyz
keep kubelet kubelet --config=etc/kubelet.yaml --kubeconfig=etc/kubelet.kubeconfig --hostname-override=node "--node-ip=$ADDRESS"
keep kube-proxy kube-proxy --config=etc/kube-proxy.yaml
wait
