#!/bin/sh
# Makes the namespaces that this runs in a machine of their own: machine.sh DIR, where DIR holds the files that are its own.
# The machine lives until this process ends.
set -eu
mkdir -p "$1/kubelet" "$1/containerd"
resolver=$(realpath /etc/resolv.conf) # often in /run

mount --make-rshared / # containers may want to hear of mounts; nothing of them is heard outside

# Where a node keeps things, at the usual places: nothing of this machine's own is there or is changed.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/files /run/var /run/work
mount --bind "$1" /run/files # DIR may be below /var
mount -t overlay -o lowerdir=/var,upperdir=/run/var,workdir=/run/work overlay /var
mkdir -p /var/lib/kubelet /var/lib/containerd
mount --bind /run/files/kubelet /var/lib/kubelet
mount --bind /run/files/containerd /var/lib/containerd

# No name server can be reached from here: the one that is named instead refuses at once.
echo 'nameserver 127.0.0.1' >/run/resolv.conf
[ -e "$resolver" ] || { mkdir -p "${resolver%/*}" && touch "$resolver"; }
mount --bind /run/resolv.conf "$resolver"

# The kubelet insists on these settings of the kernel, which are everybody's: let it see what it wants to see.
setting() {
  [ -e "/proc/sys/$1" ] || return 0
  mkdir -p "/run/settings/${1%/*}"
  echo "$2" >"/run/settings/$1"
  mount --bind "/run/settings/$1" "/proc/sys/$1"
}
setting vm/overcommit_memory 1
setting vm/panic_on_oom 0
setting kernel/panic 10
setting kernel/panic_on_oops 1
setting kernel/keys/root_maxkeys 1000000
setting kernel/keys/root_maxbytes 25000000

ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward # that of this network namespace
touch /run/files/ready
exec sleep infinity
