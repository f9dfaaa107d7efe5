// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// progress is the result of a step.
type progress struct {
	done            bool
	reason, message string
}

func waiting(reason, format string, args ...any) progress {
	return progress{reason: reason, message: fmt.Sprintf(format, args...)}
}

// upgrade replaces at most one pod that has an older template. The order is: the witness, the standby, and, after a
// switchover, the other node. Each step requires that the pair is in sync. Pods that cannot start are exempt, so that a
// faulty template can be corrected. A node that cannot start is replaced only if the other node is active or cannot
// start either.
func (r *PairReconciler) upgrade(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) (progress, error) {
	if !current(o.set, o.applied) || o.witness != nil && !current(o.witness, o.appliedWitness) ||
		o.p.HasWitness() && o.witness == nil {
		return waiting("Updating", "the StatefulSets are being updated"), nil
	}
	for i, pod := range o.pods {
		if pod == nil || !pod.DeletionTimestamp.IsZero() {
			return waiting("Creating", "pod %s is being created", o.p.PodName(i)), nil
		}
	}
	if o.witness != nil {
		if o.witnessPod == nil || !o.witnessPod.DeletionTimestamp.IsZero() {
			return waiting("Creating", "pod %s-0 is being created", o.witness.Name), nil
		}
		if !updated(o.witnessPod, o.witness) {
			if ready(o.witnessPod) && o.inSync() < 0 {
				return waiting("NotInSync", "the witness is replaced when the pair is in sync%s", because(o.err)), nil
			}
			return r.replace(ctx, pair, o.witnessPod, "Witness")
		}
	}
	if updated(o.pods[0], o.set) && updated(o.pods[1], o.set) {
		if o.inSync() < 0 && (young(o.pods[0]) || young(o.pods[1])) {
			return waiting("Starting", "the nodes are starting%s", because(o.err)), nil
		}
		return progress{done: true, reason: "Complete", message: "all pods have the current template"}, nil
	}
	if o.witness != nil && !ready(o.witnessPod) {
		return waiting("WitnessNotReady", "the nodes are replaced when the witness is ready"), nil
	}
	return r.upgradeNodes(ctx, pair, o)
}

// startLimit is the age from which a pod is no longer considered to be starting.
const startLimit = 5 * time.Minute

func young(pod *corev1.Pod) bool { return time.Since(pod.CreationTimestamp.Time) < startLimit }

// current reports whether the status of a StatefulSet describes the last change.
func current(set *appsv1.StatefulSet, applied int64) bool {
	return set != nil && set.Generation >= applied && set.Status.ObservedGeneration >= set.Generation
}

func (r *PairReconciler) upgradeNodes(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) (progress, error) {
	active := o.inSync()
	if active < 0 || !ready(o.pods[0]) || !ready(o.pods[1]) {
		for i, pod := range o.pods {
			if !updated(pod, o.set) && o.broken(i) && (o.active() == 1-i || o.broken(1-i)) {
				return r.replace(ctx, pair, pod, "Broken")
			}
		}
		return waiting("NotInSync", "the next node is replaced when the pair is in sync and ready%s", because(o.err)), nil
	}
	if standby := o.pods[1-active]; !updated(standby, o.set) {
		return r.replace(ctx, pair, standby, "Standby")
	}
	return r.switchover(ctx, pair, o, active)
}

// broken reports whether a node does not respond and its pod is not ready.
func (o *observed) broken(i int) bool { return o.statuses[i] == nil && !ready(o.pods[i]) }

// switchover makes the other node active.
func (r *PairReconciler) switchover(
	ctx context.Context, pair *v1alpha1.LockstepPair, o *observed, active int,
) (progress, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	node, err := o.conn.Node(active)
	if err != nil {
		return progress{}, err
	}
	from := o.statuses[active].GetNode().GetNodeId()
	_, err = node.SwitchoverTo(ctx, &pb.SwitchoverRequest{From: from})
	if err != nil {
		r.Events.Eventf(pair, nil, corev1.EventTypeWarning, "SwitchoverFailed", "Switchover", "%s", err.Error())
		return waiting("SwitchoverFailed", "switchover: %v", err), nil
	}
	message := fmt.Sprintf("%s is active, %s is replaced next", o.p.PodName(1-active), o.p.PodName(active))
	r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "Switchover", "Switchover", "%s", message)
	return waiting("Switchover", "%s", message), nil
}

// replace deletes a pod, so that its StatefulSet creates it with the current template. A ready pod is evicted, which
// respects the PodDisruptionBudget.
func (r *PairReconciler) replace(
	ctx context.Context, pair *v1alpha1.LockstepPair, pod *corev1.Pod, what string,
) (progress, error) {
	only := metav1.Preconditions{UID: &pod.UID}
	var err error
	if ready(pod) {
		eviction := &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &only},
		}
		err = r.SubResource("eviction").Create(ctx, pod, eviction)
	} else {
		err = r.Delete(ctx, pod, client.Preconditions(only))
	}
	switch {
	case apierrors.IsTooManyRequests(err):
		return waiting("DisruptionBudget", "pod %s cannot be evicted now: %v", pod.Name, err), nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return waiting("Replacing", "pod %s was already replaced", pod.Name), nil
	case err != nil:
		return progress{}, fmt.Errorf("replace pod %s: %w", pod.Name, err)
	}
	r.Events.Eventf(pair, pod, corev1.EventTypeNormal, "Replacing"+what, "Replace", "replacing pod %s", pod.Name)
	return waiting("Replacing"+what, "pod %s is being replaced", pod.Name), nil
}
