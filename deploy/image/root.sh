#!/usr/bin/env bash
# Lays out the files of Akri's image: root.sh PROGRAM COMPONENTS ROOT
# They are the program, the components, their machine code, the libraries that the program is linked to, which are glibc's, and the certificates of
# public authorities. There is no shell and no package manager. With AKRI_SYSROOT the libraries are those below that directory:
# of another architecture, if the program is; then there is no machine code, and agents compile the components themselves.
set -euo pipefail

[ $# = 3 ] || { echo 'usage: root.sh PROGRAM COMPONENTS ROOT' >&2; exit 1; }
program=$1 components=$2 root=$3 sysroot=${AKRI_SYSROOT-}

install -D --mode=755 "$program" "$root/usr/bin/akri"
for file in "$components"/*; do
  install -D --mode=644 "$file" "$root/usr/lib/akri/components/${file##*/}"
done

# For all processors of the architecture. The agent refuses it where others can write.
if [ -z "$sysroot" ]; then
  "$program" handler compile --precompiled "$root/usr/share/akri/compiled" "$components"/*.wasm
fi

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
