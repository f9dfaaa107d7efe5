// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package test runs the operator against a real API server of Kubernetes with an etcd in this process. Controllers of
// Kubernetes and the kubelet do not run: kubelet_test.go creates the pods of StatefulSets, and runs a process of
// Lockstep for each pod.
package test

import (
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/controller"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
)

const (
	// patience is the limit of each wait.
	patience = 5 * time.Minute
	poll     = 100 * time.Millisecond

	kubernetes = "v1.36.3"
	namespace  = "data"
)

// apiServer returns the path of kube-apiserver: LOCKSTEP_KUBE_APISERVER, or the file that test/operator/run.sh builds.
func apiServer(t *testing.T) string {
	t.Helper()
	path := os.Getenv("LOCKSTEP_KUBE_APISERVER")
	if path == "" {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		path = filepath.Join(cache, "lockstep-kube", kubernetes, "kube-apiserver")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("no kube-apiserver; test/operator/run.sh builds it")
	}
	return path
}

// cluster is an API server with a running operator.
type cluster struct {
	t      *testing.T
	etcd   string // host:port, also for the pairs
	config *rest.Config
	kube   client.Client
	ctx    context.Context
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(s))
	require.NoError(t, v1alpha1.AddToScheme(s))
	return s
}

// newCluster starts etcd, the API server and the operator, which connects to nodes through dial.
func newCluster(t *testing.T, dial func(ctx context.Context, address string) (net.Conn, error)) *cluster {
	t.Helper()
	binary := apiServer(t)
	ctrl.SetLogger(zap.New(zap.UseDevMode(true), zap.WriteTo(testWriter{t})))
	etcd, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	server := &envtest.APIServer{
		Path: binary, EtcdURL: &url.URL{Scheme: "http", Host: etcd.Address()}, StartTimeout: patience, StopTimeout: patience,
	}
	server.Configure().Append("etcd-prefix", "/registry")
	require.NoError(t, server.Start())
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	plane := &envtest.ControlPlane{APIServer: server}
	user, err := plane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}},
		&rest.Config{QPS: 500, Burst: 500})
	require.NoError(t, err)
	c := &cluster{t: t, etcd: etcd.Address(), config: user.Config(), ctx: t.Context()}
	_, err = envtest.InstallCRDs(c.config, envtest.CRDInstallOptions{
		Paths: []string{"../../helm/lockstep-operator/crds"}, ErrorIfPathMissing: true, MaxTime: patience,
	})
	require.NoError(t, err)
	c.kube, err = client.New(c.config, client.Options{Scheme: scheme(t)})
	require.NoError(t, err)
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	yes := true
	c.create(&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "grows"}, Provisioner: "example.com/none", AllowVolumeExpansion: &yes,
	})
	c.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}, Provisioner: "example.com/none"})
	c.operator(dial)
	return c
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(string(b))
	}
	return len(b), nil
}

// operator runs the operator until the end of the test.
func (c *cluster) operator(dial func(ctx context.Context, address string) (net.Conn, error)) {
	c.t.Helper()
	skip := true
	mgr, err := ctrl.NewManager(c.config, ctrl.Options{
		Scheme: scheme(c.t), Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	require.NoError(c.t, err)
	require.NoError(c.t, controller.Setup(mgr, controller.Options{
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)}, Interval: time.Second, StepInterval: poll,
	}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		require.NoError(c.t, <-ended)
	})
}

func (c *cluster) create(o client.Object) {
	c.t.Helper()
	require.NoError(c.t, c.kube.Create(c.ctx, o))
}

// get reads an object in the namespace, and reports whether it exists.
func (c *cluster) get(o client.Object, name string) bool {
	c.t.Helper()
	err := c.kube.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
	require.NoError(c.t, client.IgnoreNotFound(err))
	return err == nil
}

// change changes the object with this name.
func change[T client.Object](c *cluster, o T, name string, f func(T)) {
	c.t.Helper()
	require.True(c.t, c.get(o, name))
	base, ok := o.DeepCopyObject().(client.Object)
	require.True(c.t, ok)
	f(o)
	require.NoError(c.t, c.kube.Patch(c.ctx, o, client.MergeFrom(base)))
}

func (c *cluster) eventually(what string, f func() bool) {
	c.t.Helper()
	require.Eventually(c.t, f, patience, poll, what)
}

// build returns the path of the program lockstep.
func build(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("LOCKSTEP_BINARY"); binary != "" {
		return binary
	}
	binary := filepath.Join(t.TempDir(), "lockstep")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/lockstep-mq/lockstep/cmd/lockstep")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}
