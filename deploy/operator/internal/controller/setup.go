// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"google.golang.org/grpc"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
)

// Options configures Setup. All fields are optional.
type Options struct {
	// DialOptions are additional gRPC options of connections to nodes.
	DialOptions []grpc.DialOption
	// Interval is the interval of checks, and StepInterval that while a pair is being changed.
	Interval, StepInterval time.Duration
}

// workers permits several reconciliations at the same time, because requests to nodes may take long.
func workers() controller.Options { return controller.Options{MaxConcurrentReconciles: 8} }

// Setup adds the controllers to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	dialer := &nodes.Dialer{Secrets: mgr.GetAPIReader(), Options: o.DialOptions}
	recorder := mgr.GetEventRecorder(fieldManager)
	pairs := &PairReconciler{
		Client: mgr.GetClient(), Nodes: dialer, Events: recorder, Interval: o.Interval, StepInterval: o.StepInterval,
	}
	if err := pairs.SetupWithManager(mgr); err != nil {
		return err
	}
	fleets := &FleetReconciler{Client: mgr.GetClient(), Events: recorder, Interval: o.Interval}
	if err := fleets.SetupWithManager(mgr); err != nil {
		return err
	}
	queues := &QueueReconciler{Client: mgr.GetClient(), Nodes: dialer, Events: recorder, Interval: o.Interval}
	return queues.SetupWithManager(mgr)
}
