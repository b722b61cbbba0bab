# The first process of a node: $1 is its name, $2 the control server's address. It is in network, mount, host name, process
# and control group namespaces of its own. All that a node writes is in memory and goes away with the namespaces.
set -e
hostname "$1"
mount --make-rprivate /
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir /sys/fs/cgroup/$controller
  mount -t cgroup -o $controller cgroup /sys/fs/cgroup/$controller
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns /run/over /run/sysctl
for dir in etc var opt; do
  mkdir -p /run/over/$dir.upper /run/over/$dir.work
  mount -t overlay -o lowerdir=/$dir,upperdir=/run/over/$dir.upper,workdir=/run/over/$dir.work overlay /$dir
done
for dir in /var/lib/containerd /var/lib/kubelet /var/lib/cni /etc/cni /var/log/pods /var/log/containers; do
  rm -rf $dir
  mkdir -p $dir
done
mkdir -p /etc/cni/net.d
mount -t tmpfs tmpfs /var/lib/containerd
mount -t tmpfs tmpfs /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
# The kubelet wants these switches of the whole machine so: it finds them so in files that lie over them, and writes nothing.
pretend() {
  file=/run/sysctl/$(echo "$1" | tr / .)
  echo "$2" >"$file"
  mount --bind "$file" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend vm/panic_on_oom 0
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
pretend kernel/keys/root_maxkeys 1000000
pretend kernel/keys/root_maxbytes 25000000
rm -f /etc/resolv.conf
echo '# no DNS server' >/etc/resolv.conf
printf '127.0.0.1 localhost %s\n%s hs.lab\n' "$1" "$2" >/etc/hosts
echo 'hosts: files dns' >/etc/nsswitch.conf
echo ready
while read -r _; do :; done
