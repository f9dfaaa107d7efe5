// SPDX-License-Identifier: Apache-2.0

// Command operator manages Lockstep pairs, fleets and queues in a Kubernetes cluster.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/controller"
)

var version = "unknown" // set by the linker

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

func run() error {
	metrics := flag.String("metrics-listen", "0.0.0.0:8080", "listen address of the metrics; 0 disables them")
	probes := flag.String("probe-listen", "0.0.0.0:8081", "listen address of /healthz and /readyz")
	elect := flag.Bool("leader-elect", true, "run only if this process holds the lease; required with several replicas")
	namespaces := flag.String("namespaces", "", "comma-separated namespaces to manage; if empty, all")
	leaseNamespace := flag.String("lease-namespace", "", "namespace of the lease; default: that of the pod")
	logs := zap.Options{}
	logs.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logs)))

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("connection to Kubernetes: %w", err)
	}
	o := ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: *metrics}, HealthProbeBindAddress: *probes,
		LeaderElection: *elect, LeaderElectionID: "lockstep-operator." + v1alpha1.Group,
		LeaderElectionNamespace: *leaseNamespace, LeaderElectionReleaseOnCancel: true,
	}
	if *namespaces != "" {
		o.Cache.DefaultNamespaces = map[string]cache.Config{}
		for name := range strings.SplitSeq(*namespaces, ",") {
			o.Cache.DefaultNamespaces[strings.TrimSpace(name)] = cache.Config{}
		}
	}
	mgr, err := ctrl.NewManager(config, o)
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	if err := controller.Setup(mgr, controller.Options{}); err != nil {
		return err
	}
	for _, add := range []func(string, healthz.Checker) error{mgr.AddHealthzCheck, mgr.AddReadyzCheck} {
		if err := add("ping", healthz.Ping); err != nil {
			return fmt.Errorf("probes: %w", err)
		}
	}
	ctrl.Log.Info("operator started", "version", version)
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}
