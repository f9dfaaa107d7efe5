#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, vets, lints and tests the operator, deploy/operator, which is a separate Go module. Its tests use a real API
# server of Kubernetes and processes of Lockstep; there is no kubelet, and no other controller of Kubernetes.
# HELM is the path of helm, and LOCKSTEP_KUBE_APISERVER that of kube-apiserver. Otherwise they are built from their
# modules, which takes many minutes the first time; kube-apiserver is kept in the user's cache directory. With
# OPERATOR_NO_BUILD=1, a missing program is not built, and the tests that require it are skipped.
# Exit code 3: the test cannot run here.
set -euo pipefail
cd "$(dirname "$0")/../.."

kubernetes=v1.36.3
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-operator.XXXXXX")
trap 'rm -rf "$work"' EXIT

log() { echo "operator: [${SECONDS}s] $*"; }
cannot() {
  echo "operator: $*"
  exit 3
}
fail() {
  echo "operator: $*" >&2
  exit 1
}

module=$PWD/deploy/operator
chart=deploy/helm/lockstep-operator
in_module() { (cd "$module" && "$@"); }

in_module go mod download || cannot "the modules of the operator cannot be fetched"
in_module go mod tidy -diff
in_module go build -o "$work/operator" .
in_module go vet ./...
in_module go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run --timeout 15m ./...
log "build, vet and lint"

# The generated files are up to date.
cp -r "$module/api" "$work/api"
in_module go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0 object paths=./api/... \
  crd paths=./api/... output:crd:dir="$work/crds"
diff -r "$module/api" "$work/api" || fail "zz_generated.deepcopy.go was not up to date"
diff -r "$chart/crds" "$work/crds" || fail "$chart/crds is not up to date: copy the output of controller-gen crd"
log "generated files are up to date"

helm=${HELM:-$(command -v helm || true)}
if [[ -z $helm && -z ${OPERATOR_NO_BUILD:-} ]]; then
  GOBIN=$work/bin go install helm.sh/helm/v3/cmd/helm@v3.21.3 >"$work/build.log" 2>&1 ||
    cannot "helm cannot be built: $(tail -n 1 "$work/build.log")"
  helm=$work/bin/helm
fi
if [[ -n $helm ]]; then
  export HELM=$helm
  for values in "" "namespaces={data,more},certManager=true" "activeService=false,metrics.listen=0"; do
    "$helm" lint --strict --quiet --kube-version "$kubernetes" "$chart" ${values:+--set "$values"}
  done
  log "helm lint"
fi

apiserver=${LOCKSTEP_KUBE_APISERVER:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep-kube/$kubernetes/kube-apiserver}
if [[ ! -x $apiserver && -z ${OPERATOR_NO_BUILD:-} ]]; then
  log "building kube-apiserver $kubernetes"
  (cd "$work" && go mod download -json "k8s.io/kubernetes@$kubernetes") >"$work/kubernetes.json" 2>/dev/null ||
    cannot "k8s.io/kubernetes $kubernetes cannot be fetched"
  source=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' "$work/kubernetes.json")
  mkdir "$work/kube" "$work/tmp"
  # go.mod of Kubernetes replaces its staging modules with directories; outside, they have version v0.X.Y.
  {
    printf 'module kube\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes %s\n\n' "$kubernetes"
    sed -nE "s,^\s*(replace )?(k8s.io/\S+) => \./staging.*,replace \2 => \2 v0.${kubernetes#v1.},p" "$source/go.mod"
  } >"$work/kube/go.mod"
  printf '//go:build tools\n\npackage kube\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver"\n' >"$work/kube/tools.go"
  mkdir -p "$(dirname "$apiserver")"
  (cd "$work/kube" && go mod tidy && GOTMPDIR=$work/tmp go build -ldflags '-s -w' -o "$apiserver" k8s.io/kubernetes/cmd/kube-apiserver) \
    >"$work/build.log" 2>&1 || cannot "kube-apiserver cannot be built: $(tail -n 1 "$work/build.log")"
fi
export LOCKSTEP_KUBE_APISERVER=$apiserver

go build -o "$work/lockstep" ./cmd/lockstep
LOCKSTEP_BINARY=$work/lockstep in_module go test -count=1 -timeout 30m ./...
log "passed; helm: ${helm:-skipped}; API server: $([[ -x $apiserver ]] && echo "$kubernetes" || echo skipped)"
