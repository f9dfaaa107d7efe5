#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the Helm chart with helm lint, helm-unittest and kubeconform, and the generated configuration with a node. The
# schemas for kubeconform are generated from the API description in the module k8s.io/kubernetes. Scheduling and probes
# are not tested, because that requires a cluster.
# HELM, UNTT and KUBECONFORM are paths of programs; otherwise they are built from their modules, which takes minutes the
# first time.
# Exit code 3: the test cannot run here.
set -euo pipefail
cd "$(dirname "$0")/../.."

chart=deploy/helm/lockstep
kubernetes=v1.36.3
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-helm.XXXXXX")
finish() {
  chmod -R u+w "$work" && rm -rf "$work"
}
trap finish EXIT

log() { echo "helm: [${SECONDS}s] $*"; }
cannot() {
  echo "helm: $*"
  exit 3
}
fail() {
  echo "helm: $*" >&2
  exit 1
}

# Prints the directory of a module in the module cache.
module() { (cd "$work" && go mod download -json "$1" 2>/dev/null) | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }
build() {
  GOBIN=$work/bin go install "$1" >"$work/build.log" 2>&1 || cannot "$1 cannot be built: $(tail -n 1 "$work/build.log")"
}
tools() {
  mkdir -p "$work/bin"
  helm=${HELM:-$(command -v helm || true)}
  if [[ -z $helm ]]; then
    build helm.sh/helm/v3/cmd/helm@v3.21.3
    helm=$work/bin/helm
  fi
  kubeconform=${KUBECONFORM:-$(command -v kubeconform || true)}
  if [[ -z $kubeconform ]]; then
    build github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
    kubeconform=$work/bin/kubeconform
  fi
  unittest=${UNTT:-$(command -v untt || true)}
  if [[ -z $unittest ]]; then
    # Build a copy: go.mod of helm-unittest has a replace directive, which `go install` rejects.
    local source
    source=$(module github.com/helm-unittest/helm-unittest@v1.1.2)
    [[ -n $source ]] || cannot "helm-unittest cannot be fetched"
    cp -r "$source" "$work/unittest"
    chmod -R u+w "$work/unittest"
    unittest=$work/bin/untt
    (cd "$work/unittest" && GOFLAGS=-mod=mod go build -o "$unittest" ./cmd/helm-unittest) >"$work/build.log" 2>&1 ||
      cannot "helm-unittest cannot be built: $(tail -n 1 "$work/build.log")"
  fi
}

render() { "$helm" template prod "$chart" --namespace data --kube-version "$kubernetes" "$@"; }

refuses() {
  local text=$1
  shift
  if render "$@" >"$work/refused.out" 2>&1; then fail "was not rejected: $*"; fi
  grep -q -- "$text" "$work/refused.out" || fail "$* is rejected without '$text': $(cat "$work/refused.out")"
}

# Creates the files of the Secrets that the chart references.
secrets() {
  mkdir -p "$work/tls" "$work"/secrets/{peer,site,fleet,site-ca,metrics,etcd-password,etcd-tls}
  "$work/bin/lockstep" cert init "$work/certs" >/dev/null
  cp "$work/certs/ca.pem" "$work/tls/ca.crt"
  cp "$work/certs/node-a.pem" "$work/tls/tls.crt"
  cp "$work/certs/node-a-key.pem" "$work/tls/tls.key"
  cp "$work"/tls/* "$work/secrets/etcd-tls/"
  cp "$work/certs/ca.pem" "$work/secrets/site-ca/ca.crt"
  echo secret-of-sixteen-or-more | tee "$work"/secrets/{peer,site,fleet,metrics}/token >"$work/secrets/etcd-password/password"
  chmod -R go= "$work/tls" "$work/secrets"
}

# Checks that a node accepts the generated configuration. The node exits because its data directory cannot be created.
node_reads() {
  local name=$1 output
  # Extract node.yaml from the ConfigMap, without its indentation.
  awk '/^  node.yaml: \|/ {on=1; next} on && !/^    / {exit} on {print substr($0, 5)}' "$work/$name.yaml" >"$work/node.yaml"
  [[ -s $work/node.yaml ]] || fail "$name: no node.yaml"
  sed -i -e "s,: /tls/,: $work/tls/," -e "s,: /secrets/,: $work/secrets/," "$work/node.yaml"
  output=$(LOCKSTEP_DATA_DIR=/dev/null/data LOCKSTEP_ADVERTISE=prod-lockstep-0.prod-lockstep-peers.data.svc.cluster.local:7420 \
    LOCKSTEP_COORDINATOR_RAFT_ADVERTISE=$([[ $name == etcd ]] || echo prod-lockstep-0.prod-lockstep-peers.data.svc.cluster.local:7430) \
    timeout 120 "$work/bin/lockstep" serve --config "$work/node.yaml" 2>&1) && fail "$name: the node started"
  [[ $output != *"invalid configuration"* ]] || fail "$name: $output"
  grep -q /dev/null/data <<<"$output" || fail "$name: $output"
  log "$name: a node accepts its node.yaml"
}

tools
go build -o "$work/bin/lockstep" ./cmd/lockstep
log "helm $("$helm" version --short 2>/dev/null), $("$kubeconform" -v)"

swagger=$(module "k8s.io/kubernetes@$kubernetes")/api/openapi-spec/swagger.json
[[ -f $swagger ]] || cannot "k8s.io/kubernetes $kubernetes, which contains the API description, cannot be fetched"
mkdir "$work/schemas"
go run ./test/helm/schemas "$swagger" "$work/schemas"

secrets
for values in "$chart"/ci/*.yaml; do
  name=$(basename "$values" .yaml)
  "$helm" lint --strict --quiet --kube-version "$kubernetes" "$chart" -f "$values"
  render -f "$values" >"$work/$name.yaml"
  # ServiceMonitor and Certificate are not part of Kubernetes.
  "$kubeconform" -strict -summary -skip ServiceMonitor,Certificate \
    -schema-location "$work/schemas/{{.ResourceKind}}{{.KindSuffix}}.json" "$work/$name.yaml" >"$work/kubeconform.out" ||
    fail "$name: $(cat "$work/kubeconform.out")"
  log "$name: $(tail -n 1 "$work/kubeconform.out")"
  node_reads "$name"
done
# kubeconform must reject an unknown field.
sed 's/podManagementPolicy:/podManagmentPolicy:/' "$work/witness.yaml" >"$work/misspelt.yaml"
! "$kubeconform" -strict -skip ServiceMonitor,Certificate -schema-location "$work/schemas/{{.ResourceKind}}{{.KindSuffix}}.json" \
  "$work/misspelt.yaml" >/dev/null || fail "kubeconform accepts an unknown field"

refuses "tls.secretName: the Secret with tls.crt"
refuses "tls.certManager.issuerRef.name: the Issuer" --set tls.mode=certManager
refuses "coordinator.etcd.endpoints: at least one is required" --set tls.mode=none,coordinator.type=etcd
refuses "replicas" --set tls.mode=none,replicas=3
refuses "site.name: the name" --set tls.mode=none,site.remote='{a:7420}'
refuses "site.remote: the addresses" --set tls.mode=none,site.name=east,site.caSecret=west
refuses "fleet.endpoints: required" --set tls.mode=none,fleet.pair=east
refuses "console" --set tls.mode=none,console.listen=everywhere

"$unittest" "$chart" >"$work/unittest.out" || fail "helm-unittest: $(cat "$work/unittest.out")"
log "helm-unittest: $(grep '^Tests:' "$work/unittest.out")"
