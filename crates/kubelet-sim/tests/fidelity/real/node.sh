#!/bin/sh
# Sets up a node without a kubelet in the current namespaces, then runs a command there. The node has folders in
# memory, a containerd, and one image. All of them end with the namespaces; the caller removes the cgroups.
#
# Usage: unshare --mount --net --pid --fork --kill-child --mount-proc sh node.sh COMMAND...
set -eu

mount --make-rprivate /
for folder in /var/lib /var/log /run; do mount -t tmpfs tmpfs "$folder"; done
mount --make-rshared /var/lib # a kubelet needs this for its volumes
ip link set lo up

# Cgroups are shared with the host. So the kubelet gets its own cgroup in each hierarchy.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then hierarchies=/sys/fs/cgroup; else hierarchies=/sys/fs/cgroup/*; fi
for hierarchy in $hierarchies; do mkdir "$hierarchy/$WINDLASS_FIDELITY_CGROUP"; done

dir=/var/lib/fidelity
mkdir -p /var/lib/kubelet /run/cni "$dir/pods" "$dir/ends" "$dir/image/bin"

# A kubelet writes these settings of the whole machine, in any namespace. Copies of the files protect the machine.
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
  kernel/keys/root_maxbytes; do
  copy="$dir/$(basename "$name")"
  cat "/proc/sys/$name" >"$copy"
  mount --bind "$copy" "/proc/sys/$name"
done

cat >"$dir/containerd.toml" <<TOML
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/app:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/run/cni"
    conf_dir = "/run/cni"
TOML
containerd -c "$dir/containerd.toml" >"$dir/containerd.log" 2>&1 &

# The image has a static busybox. Without arguments, its container sleeps.
cp /bin/busybox "$dir/image/bin/"
for applet in sh sleep env; do ln -s busybox "$dir/image/bin/$applet"; done
tar -C "$dir/image" -cf "$dir/layer.tar" .
digest=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
cat >"$dir/config.json" <<JSON
{"architecture": "amd64", "os": "linux",
 "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
JSON
cat >"$dir/manifest.json" <<JSON
[{"Config": "config.json", "RepoTags": ["docker.io/local/app:1"], "Layers": ["layer.tar"]}]
JSON
tar -C "$dir" -cf "$dir/app.tar" manifest.json config.json layer.tar

tries=100
until ctr version >/dev/null 2>&1; do
  tries=$((tries - 1))
  [ "$tries" -gt 0 ] || { tail "$dir/containerd.log" >&2; exit 1; }
  sleep 0.1
done
ctr -n k8s.io images import "$dir/app.tar" >/dev/null
"$@"
