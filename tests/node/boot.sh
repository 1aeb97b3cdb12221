#!/usr/bin/env bash
# Boots a kernel of another architecture with the files of Akri's image, under an emulator: boot.sh ARCH DIRECTORY
# ARCH is Debian's name, arm64 or armhf. DIRECTORY holds what `make image` has left for this platform and for this machine's. The
# kernel and busybox are Debian's packages, which are unpacked and not installed. tests/node/init says what is shown. SOURCES names
# a sources.list of another suite of Debian, and KERNEL its package of the kernel.
set -euo pipefail
cd "$(dirname "$0")/../.."

[ $# = 2 ] || { echo 'usage: boot.sh ARCH DIRECTORY' >&2; exit 1; }
arch=$1 image=$2
case $arch in
  arm64) platform=linux/arm64 kernel=linux-image-arm64 machine=(qemu-system-aarch64 -M virt -cpu "${CPU:-cortex-a53}") ;;
  armhf) platform=linux/arm/v7 kernel=linux-image-armmp machine=(qemu-system-arm -M virt,highmem=off -cpu "${CPU:-cortex-a7}") ;;
  *) echo "there is no node of architecture '$arch': arm64, armhf" >&2; exit 1 ;;
esac
kernel=${KERNEL:-$kernel}
work=$PWD/target/node/$arch/$kernel
root=$work/root
mkdir -p "$work"/{lists,archives}/partial "$work/packages"

# apt, for packages of another architecture in a directory of its own.
apt() {
  "apt-$1" --option "APT::Architecture=$arch" --option "APT::Architectures=$arch" --option "Dir::State::lists=$work/lists" \
    --option Dir::State::status=/dev/null --option "Dir::Cache=$work" --option "Dir::Cache::archives=$work/archives" \
    --option APT::Sandbox::User=root \
    ${SOURCES:+--option "Dir::Etc::sourcelist=$SOURCES" --option Dir::Etc::sourceparts=-} "${@:2}"
}
if ! compgen -G "$work/packages/boot/vmlinuz-*" >/dev/null; then
  apt get update -qq
  package=$(apt cache depends "$kernel" | sed -n 's/^  Depends: \(linux-image\)/\1/p')
  (cd "$work" && apt get download -qq "$package" busybox-static)
  for file in "$work"/*.deb; do
    dpkg-deb --fsys-tarfile "$file" | tar --extract --directory "$work/packages" --wildcards './boot/*' './bin/*' './usr/bin/*' 2>/dev/null || true
    rm "$file"
  done
fi
kernel=$(compgen -G "$work/packages/boot/vmlinuz-*")
busybox=$(find "$work/packages" -name busybox)

rm -rf "$root"
cp -a "$image/$platform/root" "$root"
mkdir -p "$root"/{bin,dev,proc,sys,run,tmp,var}
cp "$busybox" "$root/bin/"
cp tests/node/init "$root/init"
# Machine code of another platform, and the hostile guest.
cp -a "$image/linux/amd64/root/usr/share/akri/compiled" "$root/foreign"
cp -a tests/node/manifests "$root/manifests"
cp examples/local/{echo,memory}.yaml "$root/manifests/"
cp tests/guests/target/wasm32-wasip2/release/akri_guest.wasm "$root/manifests/components/guest.wasm"
(cd "$root" && find . -print0 | sort --zero-terminated | cpio --null --create --format=newc --quiet --owner=0:0) | gzip --fast >"$work/initramfs.gz"

log=$work/boot.log
timeout "${SECONDS_AT_MOST:-1800}" "${machine[@]}" -smp 2 -m 1024 -nographic -no-reboot -nic none \
  -kernel "$kernel" -initrd "$work/initramfs.gz" -append "console=ttyAMA0 panic=-1 quiet rdinit=/init" </dev/null |
  tee "$log" | sed -u 's/\r$//'
grep -q '^node: all checks passed' "$log" || { echo "a check has failed, or the node did not come to its end: $log" >&2; exit 1; }
