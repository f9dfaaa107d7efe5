// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
)

const chart = "../../../helm/lockstep"

func newPair(t *testing.T, spec []byte) *Pair {
	t.Helper()
	o := &v1alpha1.LockstepPair{}
	o.Name, o.Namespace = "prod", "data"
	require.NoError(t, yaml.UnmarshalStrict(spec, &o.Spec))
	o.Spec.Image.Tag = "v0.2.0"
	return New(o)
}

// normal returns an object without unset fields, and without the labels and strategies that differ from the chart.
func normal(t *testing.T, object any) map[string]any {
	t.Helper()
	text, err := json.Marshal(object)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(text, &m))
	delete(m, "status")
	metadata, ok := m["metadata"].(map[string]any)
	require.True(t, ok)
	labels, ok := metadata["labels"].(map[string]any)
	require.True(t, ok)
	for _, name := range []string{LabelVersion, LabelManagedBy, "helm.sh/chart"} {
		delete(labels, name)
	}
	if spec, ok := m["spec"].(map[string]any); ok {
		if m["kind"] == "StatefulSet" {
			delete(spec, "updateStrategy")
		}
		if spec["type"] == "ClusterIP" { // the default
			delete(spec, "type")
		}
	}
	pruned, _ := prune(m).(map[string]any)
	delete(pruned["metadata"].(map[string]any), "namespace")
	return pruned
}

// prune removes null, empty objects of unset structs, and defaults of ports.
func prune(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			inner = prune(inner)
			m, isMap := inner.(map[string]any)
			empty := isMap && len(m) == 0 && (key == "resources" || key == "status" || key == "strategy" || key == "metadata")
			if inner == nil || empty || key == "protocol" && inner == "TCP" {
				delete(v, key)
				continue
			}
			v[key] = inner
		}
		return v
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
		return v
	}
	return value
}

func rendered(t *testing.T, helm, values string) map[string]map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), helm, "template", "prod", chart, "--namespace", "data",
		"--kube-version", "v1.36.3", "--set", "fullnameOverride=prod", "-f", values)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	require.NoError(t, err, failed.String())
	all := map[string]map[string]any{}
	for document := range strings.SplitSeq(string(out), "\n---\n") {
		var o map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(document), &o))
		kind, _ := o["kind"].(string)
		if o == nil || kind == "ServiceMonitor" || strings.Contains(document, "helm.sh/hook") {
			continue
		}
		o = normal(t, o)
		all[kind+" "+o["metadata"].(map[string]any)["name"].(string)] = o
	}
	return all
}

// The objects are equal to those of the Helm chart. HELM is the path of helm; test/operator/run.sh builds it.
func TestObjectsEqualChart(t *testing.T) {
	helm := os.Getenv("HELM")
	if helm == "" {
		var err error
		if helm, err = exec.LookPath("helm"); err != nil {
			t.Skip("helm is not installed")
		}
	}
	files, err := filepath.Glob(chart + "/ci/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var spec map[string]any
			require.NoError(t, yaml.Unmarshal(text, &spec))
			delete(spec, "serviceMonitor") // not created by the operator
			text, err = yaml.Marshal(spec)
			require.NoError(t, err)
			require.Equal(t, rendered(t, helm, file), created(t, newPair(t, text)))
		})
	}
}

func created(t *testing.T, p *Pair) map[string]map[string]any {
	t.Helper()
	all, err := p.All()
	require.NoError(t, err)
	set, err := p.StatefulSet()
	require.NoError(t, err)
	all = append(all, set)
	if w := p.Witness(); w != nil {
		all = append(all, w)
	}
	objects := map[string]map[string]any{}
	for _, o := range all {
		objects[o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName()] = normal(t, o)
	}
	return objects
}

func TestConfig(t *testing.T) {
	p := newPair(t, []byte(`
tls: {mode: none}
config: {min-in-sync: 2, listen: "127.0.0.1:1", metrics: {tls: {own: false}}}
`))
	text, err := p.Config()
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &config))
	require.Equal(t, "0.0.0.0:7420", config["listen"], "settings of the operator take precedence")
	require.InEpsilon(t, 2.0, config["min-in-sync"], 0)
	require.Equal(t, map[string]any{"budget": "512MiB"}, config["memory"])
	require.Equal(t, "prod-0.prod-peers.data.svc.cluster.local:7420", p.Address(0))

	o := *p.o.DeepCopy()
	o.Spec.Fleet.Pair = "a"
	_, err = New(&o).Config()
	require.ErrorIs(t, err, ErrInvalid, "a witness and no endpoints of etcd")
	o.Spec.Fleet.Endpoints = []string{"etcd:2379"}
	_, err = New(&o).Config()
	require.NoError(t, err)
	o.Spec.Site.Name = "east"
	_, err = New(&o).Config()
	require.ErrorIs(t, err, ErrInvalid, "a site and a fleet")
	o.Spec.Config = &runtime.RawExtension{Raw: []byte(`[]`)}
	_, err = New(&o).StatefulSet()
	require.Error(t, err)
}

// A change of a setting changes the template of the pods, so that they are replaced.
func TestChecksum(t *testing.T) {
	checksum := func(config string) string {
		set, err := newPair(t, []byte("tls: {mode: none}\nconfig: "+config)).StatefulSet()
		require.NoError(t, err)
		return set.Spec.Template.Annotations["checksum/config"]
	}
	require.Equal(t, checksum(`{a: 1, b: 2}`), checksum(`{b: 2, a: 1}`))
	require.NotEqual(t, checksum(`{a: 1}`), checksum(`{a: 2}`))
}
