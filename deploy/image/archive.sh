#!/usr/bin/env bash
# Makes a container image without a registry or a daemon: archive.sh ARCHIVE NAME COMMAND VERSION [PLATFORM=]ROOT...
# The one layer of each platform's image is the directory ROOT, and COMMAND a JSON array. Without PLATFORM it is that of this
# machine. ARCHIVE is an OCI layout, of an index if there are several platforms. The first one's image is in it also as `docker save`
# writes it: docker, podman, skopeo, ctr and k3s load it. The same files make the same archive, whenever and by whomever, with the
# same gzip.
set -euo pipefail

[ $# -ge 5 ] || { echo 'usage: archive.sh ARCHIVE NAME COMMAND VERSION [PLATFORM=]ROOT...' >&2; exit 1; }
archive=$(realpath "$1") name=$2 command=$3 version=$4
shift 4
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

OCI=application/vnd.oci.image
manifests=() saved=
for image; do
  case $image in
    linux/*=*) platform=${image%%=*} root=${image#*=} ;;
    *) platform=$(uname -m) root=$image ;;
  esac
  case $platform in
    x86_64 | linux/amd64) platform='"architecture":"amd64","os":"linux"' ;;
    aarch64 | linux/arm64) platform='"architecture":"arm64","os":"linux"' ;;
    armv7l | linux/arm/v7) platform='"architecture":"arm","variant":"v7","os":"linux"' ;;
    *) echo "no image for $platform" >&2; exit 1 ;;
  esac
  pack "$work/layer.tar" "$root" .
  read -r contents _ < <(sha256sum "$work/layer.tar")
  gzip --no-name --best "$work/layer.tar"
  read -r layer layer_size < <(blob "$work/layer.tar.gz")
  read -r config config_size < <(blob <<JSON
{$platform,"created":"1970-01-01T00:00:00Z",
 "config":{"Entrypoint":$command,"Env":["PATH=/usr/bin:/bin"],"WorkingDir":"/",
  "Labels":{"org.opencontainers.image.version":"$version"}},
 "rootfs":{"type":"layers","diff_ids":["sha256:$contents"]}}
JSON
  )
  read -r digest size < <(blob <<JSON
{"schemaVersion":2,"mediaType":"$OCI.manifest.v1+json",
 "config":{"mediaType":"$OCI.config.v1+json","digest":"sha256:$config","size":$config_size},
 "layers":[{"mediaType":"$OCI.layer.v1.tar+gzip","digest":"sha256:$layer","size":$layer_size}]}
JSON
  )
  manifests+=("{\"mediaType\":\"$OCI.manifest.v1+json\",\"digest\":\"sha256:$digest\",\"size\":$size,\"platform\":{$platform}")
  [ -n "$saved" ] || saved="{\"Config\":\"blobs/sha256/$config\",\"RepoTags\":[\"$name\"],\"Layers\":[\"blobs/sha256/$layer\"]}"
done

index() { # MANIFEST,...
  printf '{"schemaVersion":2,"mediaType":"%s","manifests":[%s]}\n' "$OCI.index.v1+json" "$1"
}
# What the archive names is one image, or the index of all.
named=${manifests[0]}
if [ ${#manifests[@]} -gt 1 ]; then
  all=$(printf '%s},' "${manifests[@]}")
  read -r digest size < <(index "${all%,}" | blob)
  named="{\"mediaType\":\"$OCI.index.v1+json\",\"digest\":\"sha256:$digest\",\"size\":$size"
fi
index "$named,\"annotations\":{\"io.containerd.image.name\":\"$name\",\"org.opencontainers.image.ref.name\":\"${name##*:}\"}}" >"$work/index.json"
echo '{"imageLayoutVersion":"1.0.0"}' >"$work/oci-layout"
echo "[$saved]" >"$work/manifest.json"
pack "$archive" "$work" oci-layout index.json manifest.json blobs
echo "sha256:$digest"
