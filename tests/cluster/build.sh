#!/usr/bin/env bash
# Kubernetes for the tests: build.sh DIR puts all programs of a cluster into DIR/bin, once.
#
# Debian's source package has all of Kubernetes 1.20 with its vendored dependencies, Debian's Go builds it offline, and the
# rest are Debian's own packages. They are unpacked below DIR and not installed: nothing else on the machine changes but Go's
# build cache.
set -euo pipefail

VERSION=1.20.2
RECIPE=3 # raised when something else is to be built: then what is there is built anew
COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
PACKAGES=(golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server containerd runc containernetworking-plugins busybox-static)
PROGRAMS=(usr/bin/{etcd,containerd,containerd-shim-runc-v2,ctr} usr/sbin/runc bin/busybox usr/lib/cni/{loopback,ptp,host-local})

step() { printf '%s  %s\n' "$(date +%T)" "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
skip() { printf 'no Kubernetes is built, since %s: stories on a cluster will be skipped\n' "$*" >&2; exit 0; }

# apt-get with its own lists, of this machine's sources and the source packages beside them.
prepare_apt() {
  mkdir -p lists/partial cache/archives/partial
  local deb822=(/etc/apt/sources.list.d/debian.sources) lines=(/etc/apt/sources.list)
  if [ -e "${deb822[0]}" ]; then sed 's/^Types:.*/Types: deb deb-src/' "${deb822[0]}" >debian.sources
  elif [ -e "${lines[0]}" ]; then sed -n 's/^deb \(.*\)/deb \1\ndeb-src \1/p' "${lines[0]}" >debian.list
  else fail "neither ${deb822[0]} nor ${lines[0]} names a Debian mirror"; fi
  APT=(apt-get -qq -o Dir::Etc::SourceList="$(ls "$PWD"/debian.*)" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$PWD/lists"
    -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=root)
  "${APT[@]}" update || fail 'the Debian mirror does not answer'
}

download() {
  step 'downloading packages'
  prepare_apt
  "${APT[@]}" download "${PACKAGES[@]}" || fail "cannot download ${PACKAGES[*]}"
  "${APT[@]}" source --download-only kubernetes || fail 'cannot download the source package kubernetes'
}

unpack() {
  local package
  for package in *.deb; do dpkg-deb --extract "$package" root; done
  ROOT=$PWD/root KUBERNETES=$PWD/go/src/k8s.io/kubernetes
  mkdir -p bin "$KUBERNETES"
  tar --extract --file kubernetes_*.orig.tar.* --directory "$KUBERNETES" --strip-components 1
  cp "${PROGRAMS[@]/#/root/}" bin/
}

# Makes sources of the time of Go 1.15 right for Debian's Go.
mend() {
  # The vendored one goes round the language in a way that Go 1.18 has closed: the API server's memory would be damaged.
  local library=github.com/modern-go/reflect2
  rm -r "vendor/$library"
  cp -r "$ROOT/usr/share/gocode/src/$library" "vendor/$library"
  # This comparison never held, until Go 1.18 made it true of empty strings: the API server would take "" for null.
  local files=(vendor/{k8s.io/kube-openapi/pkg/validation,github.com/go-openapi}/validate/type.go)
  local never=' || reflect.DeepEqual(reflect.Zero(reflect.TypeOf(data)), reflect.ValueOf(data))'
  [ "$(grep --fixed-strings --count --no-filename -- "$never" "${files[@]}" | xargs)" = '1 1' ] || fail 'not the sources that are known'
  sed --in-place "s/$never//" "${files[@]}"
}

# The one generated file that is not in the sources: the schemas that the API server publishes.
generate_schemas() {
  step 'generating schemas'
  "$GO" install ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  local packages
  packages=$(grep --recursive --files-with-matches --include='*.go' --exclude='*_test.go' '^// +k8s:openapi-gen=' pkg staging |
    grep --invert-match -e code-generator -e sample-apiserver | xargs -n 1 dirname |
    sed -e 's#^staging/src/#vendor/#' -e 's#^#k8s.io/kubernetes/#' | LC_ALL=C sort --unique | paste --serial --delimiters=,)
  "$GOPATH/bin/openapi-gen" --input-dirs "$packages" --output-package k8s.io/kubernetes/pkg/generated/openapi \
    --output-file-base zz_generated.openapi --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt \
    --report-filename "$GOPATH/violations"
}

build() {
  export GOROOT=$ROOT/usr/lib/go-1.19 GOPATH=$PWD/go GO111MODULE=off GOPROXY=off CGO_ENABLED=0 GOFLAGS=-trimpath
  GO=$GOROOT/bin/go
  local flags='-s -w' major minor package
  IFS=. read -r major minor _ <<<"$VERSION"
  for package in component-base/version client-go/pkg/version; do
    package=k8s.io/kubernetes/vendor/k8s.io/$package
    flags+=" -X $package.gitVersion=v$VERSION -X $package.gitMajor=$major -X $package.gitMinor=$minor"
  done
  pushd "$KUBERNETES" >/dev/null
  mend
  generate_schemas
  step "building Kubernetes $VERSION: 5 minutes on two idle cores, 1 if Go has it in its cache"
  "$GO" install -ldflags "$flags" "${COMPONENTS[@]/#/./cmd/}"
  popd >/dev/null
  cp "${COMPONENTS[@]/#/$GOPATH/bin/}" bin/
}

check() {
  local program
  for program in "${COMPONENTS[@]}" etcd containerd ctr runc; do
    "bin/$program" --version >/dev/null || fail "$program does not run here"
  done
}

[ $# = 1 ] || fail 'usage: build.sh DIR'
mkdir -p "$1"
cd "$1"
exec 9>build.lock
flock 9
[ "$(cat bin/recipe 2>/dev/null)" != $RECIPE ] || exit 0
[ "$(id -u)" = 0 ] || skip 'a cluster needs root'
[ "$(. /etc/os-release && echo "$ID ${VERSION_CODENAME-}")" = 'debian bookworm' ] || skip 'this is not Debian bookworm'
rm -rf new
mkdir new
(
  cd new
  download
  unpack
  build
  check
  echo $RECIPE >bin/recipe
)
rm -rf bin
mv new/bin bin
rm -rf new
step "all programs are in $1/bin"
