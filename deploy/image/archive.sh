#!/usr/bin/env bash
# Makes a container image without a registry or a daemon: archive.sh ARCHIVE NAME ROOT COMMAND [VERSION]
# The one layer of the image is the directory ROOT, and COMMAND a JSON array. ARCHIVE is an OCI layout that is also what
# `docker save` writes: docker, podman, skopeo, ctr and k3s load it. The same files make the same archive, whenever and by
# whomever, with the same gzip.
set -euo pipefail

[ $# -ge 4 ] || { echo 'usage: archive.sh ARCHIVE NAME ROOT COMMAND [VERSION]' >&2; exit 1; }
archive=$(realpath "$1") name=$2 root=$3 command=$4 version=${5-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/blobs/sha256"

pack() { # ARCHIVE DIRECTORY FILE...
  tar --create --file "$1" --directory "$2" --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w "${@:3}"
}
# Puts standard input, or a file, among the blobs. Prints its digest and size.
blob() {
  local file=$work/new
  if [ $# = 1 ]; then mv "$1" "$file"; else cat >"$file"; fi
  local digest size
  digest=$(sha256sum "$file" | cut --delimiter=' ' --fields=1) size=$(stat --format=%s "$file")
  mv "$file" "$work/blobs/sha256/$digest"
  echo "$digest" "$size"
}

case ${AKRI_ARCHITECTURE-$(uname -m)} in
  x86_64 | amd64) architecture=amd64 ;;
  aarch64 | arm64) architecture=arm64 ;;
  *) echo "no image for ${AKRI_ARCHITECTURE-$(uname -m)}" >&2; exit 1 ;;
esac
pack "$work/layer.tar" "$root" .
read -r contents _ < <(sha256sum "$work/layer.tar")
gzip --no-name --best "$work/layer.tar"
read -r layer layer_size < <(blob "$work/layer.tar.gz")
read -r config config_size < <(blob <<JSON
{"architecture":"$architecture","os":"linux","created":"1970-01-01T00:00:00Z",
 "config":{"Entrypoint":$command,"Env":["PATH=/usr/bin:/bin"],"WorkingDir":"/",
  "Labels":{"org.opencontainers.image.version":"$version"}},
 "rootfs":{"type":"layers","diff_ids":["sha256:$contents"]}}
JSON
)
read -r manifest manifest_size < <(blob <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
 "config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config","size":$config_size},
 "layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:$layer","size":$layer_size}]}
JSON
)
cat >"$work/index.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json",
 "manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$manifest","size":$manifest_size,
  "platform":{"architecture":"$architecture","os":"linux"},
  "annotations":{"io.containerd.image.name":"$name","org.opencontainers.image.ref.name":"${name##*:}"}}]}
JSON
echo '{"imageLayoutVersion":"1.0.0"}' >"$work/oci-layout"
cat >"$work/manifest.json" <<JSON
[{"Config":"blobs/sha256/$config","RepoTags":["$name"],"Layers":["blobs/sha256/$layer"]}]
JSON
pack "$archive" "$work" oci-layout index.json manifest.json blobs
echo "sha256:$manifest"
