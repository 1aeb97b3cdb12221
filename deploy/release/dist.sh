#!/usr/bin/env bash
# Makes the files that a release publishes: dist.sh IMAGE-DIRECTORY DIRECTORY VERSION REPOSITORY HELM
# IMAGE-DIRECTORY is what `make image` left, and REPOSITORY where its image will be pushed. DIRECTORY gets the image's archive, the
# program with the components and the SBOM for each platform, the manifest of kubectl's plugin for krew, the chart and the plain
# manifests, both with the digest of the image, and SHA256SUMS. The same input makes the same files.
set -euo pipefail

[ $# = 5 ] || { echo 'usage: dist.sh IMAGE-DIRECTORY DIRECTORY VERSION REPOSITORY HELM' >&2; exit 1; }
image=$1 directory=$2 version=$3 repository=$4 helm=$5
rm -rf "$directory"
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pack() { # ARCHIVE DIRECTORY FILE...
  tar --create --directory "$2" --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w \
    "${@:3}" | gzip --no-name --best >"$1"
}

cp "$image/akri.tar" "$directory/akri-$version-image.tar"
digest=$(tar --extract --to-stdout --file "$image/akri.tar" index.json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["manifests"][0]["digest"])')

homepage=https://github.com/${repository#*/} # of the images' owner
krew() { # LINES [NAME ARCH SHA256]
  sed "$1; /^#/d; s|HOMEPAGE|$homepage|; s|VERSION|$version|; s|NAME|${2-}|; s|ARCH|${3-}|; s|SHA256|${4-}|" deploy/krew/akri.yaml
}
krew '/^  platforms:/q' >"$directory/krew-akri.yaml"

for root in "$image"/linux/*/root "$image"/linux/*/*/root; do
  [ -d "$root" ] || continue
  platform=${root#"$image/linux/"} platform=${platform%/root}
  name=akri-$version-linux-${platform/\//}
  mkdir -p "$work/$name"
  cp -a "$root/usr/bin/akri" "$root/usr/lib/akri/components" LICENSE "$work/$name/"
  pack "$directory/$name.tar.gz" "$work" "$name"
  cp "${root%/root}/akri.cdx.json" "$directory/$name.cdx.json"
  sum=$(sha256sum "$directory/$name.tar.gz")
  krew '1,/^  platforms:/d' "$name" "${platform%%/*}" "${sum%% *}" >>"$directory/krew-akri.yaml"
done

cp -a deploy/helm/akri "$work/akri"
sed -i "s|^\(  repository: \).*|\1$repository|; s|^\(  digest: \).*|\1\"$digest\"|" "$work/akri/values.yaml"
pack "$directory/akri-$version.tgz" "$work" akri
"$helm" template akri "$directory/akri-$version.tgz" --namespace akri-system --kube-version 1.20.0 \
  --set createNamespace=true,podDisruptionBudget.enabled=false,crds.upgrade=false >"$directory/akri.yaml"
wanted="image: \"$repository:$version@$digest\""
[ "$(grep --count --fixed-strings "$wanted" "$directory/akri.yaml")" -ge 3 ] || { echo "the chart does not ask for $wanted" >&2; exit 1; }
cp deploy/crds.yaml deploy/policy.yaml "$directory/"

(cd "$directory" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
echo "$directory: image $digest"
