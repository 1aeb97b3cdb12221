#!/usr/bin/env bash
# Lays out the files of Akri's image: root.sh PROGRAM COMPONENTS ROOT [PLATFORM]
# They are the program, the components, their machine code, the libraries that the program is linked to, which are glibc's, and the
# certificates of public authorities. There is no shell and no package manager. With AKRI_SYSROOT the program is one of another
# architecture: the libraries are those below that directory, and target/debug/akri compiles the components.
set -euo pipefail

[ $# -ge 3 ] || { echo 'usage: root.sh PROGRAM COMPONENTS ROOT [PLATFORM]' >&2; exit 1; }
program=$1 components=$2 root=$3 platform=${4-} sysroot=${AKRI_SYSROOT-}

install -D --mode=755 "$program" "$root/usr/bin/akri"
for file in "$components"/*; do
  install -D --mode=644 "$file" "$root/usr/lib/akri/components/${file##*/}"
done

# For all processors of the architecture. The agent refuses it where others can write.
compiler=$program
[ -z "$sysroot" ] || compiler=target/debug/akri
"$compiler" handler compile ${platform:+--target="$platform"} --precompiled "$root/usr/share/akri/compiled" "$components"/*.wasm

# Absolute paths of the loader and the libraries. A program of another architecture cannot be asked by ldd.
libraries() {
  if [ -z "$sysroot" ]; then
    ldd "$program" | grep --only-matching '/[^ ]*'
  else
    local name
    readelf --program-headers "$program" | sed -n 's/.*program interpreter: \(.*\)]/\1/p'
    for name in $(readelf --dynamic "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
      find "$sysroot" -name "$name" -printf '/%P\n' -quit
    done
  fi
}
libraries | while read -r library; do
  install -D --mode=755 "$(realpath "$sysroot$library")" "$root$library"
done

certificates=/etc/ssl/certs/ca-certificates.crt
if [ -e "$certificates" ]; then
  install -D --mode=644 "$certificates" "$root$certificates"
else
  echo "no certificates of public authorities: $certificates does not exist (Debian: ca-certificates)" >&2
fi
