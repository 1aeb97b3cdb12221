#!/usr/bin/env bash
# Makes a container image without a registry or a daemon: image.sh ARCHIVE NAME ROOT COMMAND
# ARCHIVE is what `docker save` writes, which docker, podman, ctr and k3s load; its one layer is the directory ROOT, and
# COMMAND a JSON array. The same files make the same image, whenever and by whomever.
set -euo pipefail

[ $# = 4 ] || { echo 'usage: image.sh ARCHIVE NAME ROOT COMMAND' >&2; exit 1; }
archive=$(realpath "$1") name=$2 root=$3 command=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pack() { # ARCHIVE DIRECTORY FILE...
  tar --create --file "$1" --directory "$2" --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w "${@:3}"
}
digest() { sha256sum "$1" | cut --delimiter=' ' --fields=1; }

case $(uname -m) in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) architecture=$(uname -m) ;;
esac
pack "$work/layer.tar" "$root" .
layer=$(digest "$work/layer.tar")
cat >"$work/config" <<JSON
{"architecture":"$architecture","os":"linux","created":"1970-01-01T00:00:00Z",
 "config":{"Entrypoint":$command,"Env":["PATH=/usr/bin:/bin"],"WorkingDir":"/"},
 "rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
JSON
config=$(digest "$work/config")
mv "$work/config" "$work/$config.json"
mv "$work/layer.tar" "$work/$layer.tar"
cat >"$work/manifest.json" <<JSON
[{"Config":"$config.json","RepoTags":["$name"],"Layers":["$layer.tar"]}]
JSON
pack "$archive" "$work" manifest.json "$config.json" "$layer.tar"
