#!/usr/bin/env bash
# Makes Akri's image for platforms: build.sh DIRECTORY NAME VERSION [PLATFORM...]
# It runs in the workspace, after `make build`: target/debug/akri compiles the components of target/components for each platform.
# No program of another architecture runs. DIRECTORY gets akri.tar, and below PLATFORM the files of its image and its SBOM.
set -euo pipefail

[ $# -ge 3 ] || { echo 'usage: build.sh DIRECTORY NAME VERSION [PLATFORM...]' >&2; exit 1; }
directory=$1 name=$2 version=$3
shift 3
case $(uname -m) in
  x86_64) here=linux/amd64 ;;
  aarch64) here=linux/arm64 ;;
  armv7l) here=linux/arm/v7 ;;
  *) here= ;;
esac
[ $# -gt 0 ] || set -- "$here"

# Installs only what is missing, so that it also works offline.
install_packages() {
  local missing=() package
  for package; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: .* installed$' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  [ "$(id -u)" = 0 ] || { echo "not installed, and only root can: ${missing[*]}" >&2; exit 1; }
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

install_target() {
  rustup target list --installed | grep -qx "$1" || rustup target add "$1"
}

# The compiler of C and the libraries of another architecture are Debian's.
images=()
for platform; do
  case $platform in
    linux/amd64) target=x86_64-unknown-linux-gnu gnu=x86_64-linux-gnu packages='gcc-x86-64-linux-gnu libc6-dev-amd64-cross' ;;
    linux/arm64) target=aarch64-unknown-linux-gnu gnu=aarch64-linux-gnu packages='gcc-aarch64-linux-gnu libc6-dev-arm64-cross' ;;
    linux/arm/v7) target=armv7-unknown-linux-gnueabihf gnu=arm-linux-gnueabihf packages='gcc-arm-linux-gnueabihf libc6-dev-armhf-cross' ;;
    *) echo "no image for '$platform': there are linux/amd64, linux/arm64 and linux/arm/v7" >&2; exit 1 ;;
  esac
  sysroot=
  if [ "$platform" != "$here" ]; then
    sysroot=/usr/$gnu variable=${target//-/_}
    # shellcheck disable=SC2086
    install_packages $packages
    install_target "$target"
    export "CC_$variable=$gnu-gcc" "AR_$variable=$gnu-ar" "CARGO_TARGET_${variable^^}_LINKER=$gnu-gcc"
  fi
  cargo build --release --locked --package akri --no-default-features --target "$target" --target-dir target/operator
  root=$directory/$platform/root
  AKRI_SYSROOT=$sysroot deploy/image/root.sh "target/operator/$target/release/akri" target/components "$root" "$platform"
  deploy/image/sbom.py "$root" . handlers "$target" "$sysroot" >"$directory/$platform/akri.cdx.json"
  images+=("$platform=$root")
done
deploy/image/archive.sh "$directory/akri.tar" "$name" '["/usr/bin/akri"]' "$version" "${images[@]}"
