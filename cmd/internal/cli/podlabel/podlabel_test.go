// SPDX-License-Identifier: Apache-2.0

package podlabel

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// cluster is an API server with one pod, and a node.
type cluster struct {
	api, node *httptest.Server
	active    atomic.Bool
	rejects   atomic.Bool
	labels    chan string
	account   string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{labels: make(chan string, 100), account: t.TempDir()}
	c.node = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/activez" || !c.active.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(c.node.Close)
	c.api = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var patch struct {
			Metadata struct{ Labels map[string]string }
		}
		switch {
		case c.rejects.Load(), r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","message":"pods \"a-0\" is forbidden"}`))
		case r.Method != http.MethodPatch, r.URL.Path != "/api/v1/namespaces/data/pods/a-0",
			r.Header.Get("Content-Type") != "application/merge-patch+json",
			json.NewDecoder(r.Body).Decode(&patch) != nil, len(patch.Metadata.Labels) != 1:
			w.WriteHeader(http.StatusBadRequest)
		default:
			c.labels <- patch.Metadata.Labels["lockstep-mq.io/role"]
		}
	}))
	t.Cleanup(c.api.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.api.Certificate().Raw})
	require.NoError(t, os.WriteFile(filepath.Join(c.account, "ca.crt"), ca, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(c.account, "token"), []byte("secret\n"), 0o600))
	return c
}

func (c *cluster) flags() *flags {
	return &flags{
		probe: c.node.URL + "/activez", label: "lockstep-mq.io/role", pod: "a-0", namespace: "data",
		account: c.account, interval: time.Millisecond,
	}
}

// lookup returns environment variables of a pod.
func (c *cluster) lookup(name string) (string, bool) {
	u, err := url.Parse(c.api.URL)
	switch {
	case err != nil:
		return "", false
	case name == "KUBERNETES_SERVICE_HOST":
		return u.Hostname(), true
	case name == "KUBERNETES_SERVICE_PORT":
		return u.Port(), true
	}
	return "", false
}

// The label follows the node's role, even after an error of the API server and when the node is stopped.
func TestLabelFollowsNode(t *testing.T) {
	c := newCluster(t)
	l, err := newLabeller(c.flags(), c.lookup)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	failures := make(chan error, 100)
	done := make(chan error)
	go func() {
		done <- l.run(ctx, func(_ string, err error) {
			if err != nil {
				failures <- err
			}
		})
	}()
	require.Equal(t, "standby", <-c.labels)
	c.active.Store(true)
	require.Equal(t, "active", <-c.labels)

	c.rejects.Store(true)
	c.active.Store(false)
	failure := <-failures
	require.Error(t, failure)
	require.Contains(t, failure.Error(), `pods "a-0"`)
	require.Contains(t, failure.Error(), "verb patch")
	c.rejects.Store(false)
	require.Equal(t, "standby", <-c.labels)

	// The token is replaced while the command runs.
	require.NoError(t, os.WriteFile(filepath.Join(c.account, "token"), []byte("stale"), 0o600))
	c.active.Store(true)
	failure = <-failures
	require.Error(t, failure)
	require.Contains(t, failure.Error(), "403")
	require.NoError(t, os.WriteFile(filepath.Join(c.account, "token"), []byte("secret"), 0o600))
	require.Equal(t, "active", <-c.labels)

	c.node.Close()
	require.Equal(t, "standby", <-c.labels)
	require.Empty(t, c.labels, "the label is not set without a change")
	require.Empty(t, failures, "a failure is reported once")
	cancel()
	require.NoError(t, <-done)
}

func TestInvalidConfiguration(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]struct {
		change func(*flags)
		lookup func(string) (string, bool)
		want   string
		usage  bool
	}{
		"no pod":     {change: func(f *flags) { f.pod = "" }, want: "POD_NAME", usage: true},
		"interval":   {change: func(f *flags) { f.interval = 0 }, want: "be positive", usage: true},
		"no cluster": {lookup: func(string) (string, bool) { return "", false }, want: "Kubernetes pod"},
		"no account": {change: func(f *flags) { f.account = "/nowhere" }, want: "service account"},
		"no CA": {
			change: func(f *flags) { f.probeCA = filepath.Join(c.account, "token") }, want: "no certificate",
		},
	} {
		f, lookup := c.flags(), c.lookup
		if test.change != nil {
			test.change(f)
		}
		if test.lookup != nil {
			lookup = test.lookup
		}
		_, err := newLabeller(f, lookup)
		require.Error(t, err)
		require.Contains(t, err.Error(), test.want, name)
		require.Equal(t, test.usage, errorsIsUsage(err), name)
	}
}

func errorsIsUsage(err error) bool { return errors.Is(err, cli.ErrUsage) }
