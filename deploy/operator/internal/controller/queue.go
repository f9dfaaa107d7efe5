// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
)

// queueFinalizer delays the deletion of a LockstepQueue until its queue is deleted, or has no pair.
const queueFinalizer = v1alpha1.Group + "/queue"

const (
	// queueInterval is the default interval between two checks of a queue.
	queueInterval = time.Minute
	// queueRetry is the interval between attempts after an error.
	queueRetry = 5 * time.Second
)

// errNoPair is returned if the pair of a queue does not exist, or if its fleet has no pairs.
var errNoPair = errors.New("no pair")

// QueueReconciler reconciles LockstepQueues.
type QueueReconciler struct {
	kube.Client

	Nodes  *nodes.Dialer
	Events events.EventRecorder
	// Interval is the interval between two checks. Default 1 min.
	Interval time.Duration
}

// SetupWithManager registers the controller.
func (r *QueueReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Interval == 0 {
		r.Interval = queueInterval
	}
	err := ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.LockstepQueue{}).WithOptions(workers()).Complete(r)
	if err != nil {
		return fmt.Errorf("controller of queues: %w", err)
	}
	return nil
}

// Reconcile creates, alters or deletes a queue.
func (r *QueueReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	q := &v1alpha1.LockstepQueue{}
	if err := r.Get(ctx, req.NamespacedName, q); err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	base := q.DeepCopy()
	deletes := q.Spec.DeletionPolicy == v1alpha1.Delete || q.Spec.DeletionPolicy == v1alpha1.DeleteIfEmpty
	changed := false
	switch {
	case !q.DeletionTimestamp.IsZero():
		return r.finalize(ctx, q, base)
	case deletes:
		changed = controllerutil.AddFinalizer(q, queueFinalizer)
	default:
		changed = controllerutil.RemoveFinalizer(q, queueFinalizer)
	}
	if changed {
		if err := r.Patch(ctx, q, kube.MergeFrom(base)); err != nil {
			return ctrl.Result{}, fmt.Errorf("change the finalizer: %w", err)
		}
		base = q.DeepCopy()
	}
	return r.result(ctx, q, base, r.sync(ctx, q))
}

// result writes the status, and schedules the next check.
func (r *QueueReconciler) result(
	ctx context.Context, q, base *v1alpha1.LockstepQueue, err error,
) (ctrl.Result, error) {
	q.Status.ObservedGeneration, q.Status.Queue = q.Generation, queueName(q)
	reason, message := "Exists", "the queue has the options of the spec"
	level, after := corev1.EventTypeNormal, r.Interval
	if err != nil {
		reason, message = reasonOf(err), err.Error()
		level, after = corev1.EventTypeWarning, queueRetry
	}
	if setCondition(&q.Status.Conditions, q.Generation, v1alpha1.ConditionReady, err == nil, reason, message) {
		r.Events.Eventf(q, nil, level, reason, "Reconcile", "%s", message)
	}
	if !equality.Semantic.DeepEqual(base.Status, q.Status) {
		if err := kube.IgnoreNotFound(r.Status().Patch(ctx, q, kube.MergeFrom(base))); err != nil {
			return ctrl.Result{}, fmt.Errorf("write the status: %w", err)
		}
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// reasonOf returns the reason of a condition.
func reasonOf(err error) string {
	for _, r := range []struct {
		err    error
		reason string
	}{
		{errNoPair, "NoPair"},
		{nodes.ErrCredentials, "Credentials"},
		{admin.ErrNotEmpty, "NotEmpty"},
		{client.ErrInvalid, "Invalid"},
		{client.ErrDenied, "Denied"},
		{client.ErrUnauthenticated, "Denied"},
		{client.ErrRefused, "Refused"},
		{client.ErrLimit, "Limit"},
		{client.ErrQueueNotFound, "QueueNotFound"},
	} {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return "Unavailable"
}

func queueName(q *v1alpha1.LockstepQueue) string {
	if q.Spec.Name != "" {
		return q.Spec.Name
	}
	return q.Name
}

// open returns a connection to the pair of the queue, or to a pair of its fleet.
func (r *QueueReconciler) open(
	ctx context.Context, q *v1alpha1.LockstepQueue,
) (*nodes.Conn, *v1alpha1.LockstepPair, error) {
	pair := &v1alpha1.LockstepPair{}
	if q.Spec.Pair != "" {
		err := r.Get(ctx, types.NamespacedName{Namespace: q.Namespace, Name: q.Spec.Pair}, pair)
		if apierrors.IsNotFound(err) {
			return nil, nil, fmt.Errorf("%w: LockstepPair %s does not exist", errNoPair, q.Spec.Pair)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read LockstepPair %s: %w", q.Spec.Pair, err)
		}
	} else {
		var list v1alpha1.LockstepPairList
		err := r.List(ctx, &list, kube.InNamespace(q.Namespace), kube.MatchingLabels{fleetLabel: q.Spec.Fleet})
		if err != nil {
			return nil, nil, fmt.Errorf("list the pairs of LockstepFleet %s: %w", q.Spec.Fleet, err)
		}
		if len(list.Items) == 0 {
			return nil, nil, fmt.Errorf("%w: LockstepFleet %s has no pairs", errNoPair, q.Spec.Fleet)
		}
		pair = &list.Items[max(0, slices.IndexFunc(list.Items, usable))]
	}
	conn, err := r.Nodes.Open(ctx, pair)
	return conn, pair, err
}

// usable reports whether a pair can receive the requests for a queue of its fleet.
func usable(p v1alpha1.LockstepPair) bool {
	return p.DeletionTimestamp.IsZero() && meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady)
}

func (r *QueueReconciler) sync(ctx context.Context, q *v1alpha1.LockstepQueue) error {
	config, err := queueConfig(q.Spec.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	conn, pair, err := r.open(ctx, q)
	if err != nil {
		return err
	}
	defer conn.Close()
	name := queueName(q)
	options := admin.CreateQueueOptions{
		Config: config, Topic: q.Spec.Topic, IfNotExists: true, PlacementGroup: q.Spec.PlacementGroup,
	}
	for _, s := range q.Spec.Subscriptions {
		if s.Filter == "" {
			options.Subscriptions = append(options.Subscriptions, s.Name)
		}
	}
	if len(options.Subscriptions) < len(q.Spec.Subscriptions) && len(options.Subscriptions) == 0 {
		options.Topic = true
	}
	found, created, err := conn.Admin.CreateQueue(ctx, name, options)
	if err != nil {
		return err
	}
	if created {
		r.Events.Eventf(q, nil, corev1.EventTypeNormal, "Created", "Create", "queue %s was created", name)
	} else if found.Own.Config != config {
		if found, err = conn.Admin.AlterQueue(ctx, name, config); err != nil {
			return err
		}
		r.Events.Eventf(q, nil, corev1.EventTypeNormal, "Altered", "Alter", "the options of queue %s were changed", name)
	}
	if err := subscribe(ctx, conn, &found, q.Spec.Subscriptions); err != nil {
		return err
	}
	return owner(ctx, conn, pair, q)
}

// subscribe creates missing subscriptions.
func subscribe(ctx context.Context, conn *nodes.Conn, q *admin.Queue, all []v1alpha1.QueueSubscription) error {
	for _, s := range all {
		if slices.ContainsFunc(q.Subscriptions, func(is admin.Subscription) bool { return is.Name == s.Name }) {
			continue
		}
		_, _, err := conn.Admin.CreateSubscription(ctx, q.Name, s.Name,
			admin.SubscriptionOptions{Filter: s.Filter, IfNotExists: true})
		if err != nil {
			return err
		}
	}
	return nil
}

// owner sets the pair in the status.
func owner(ctx context.Context, conn *nodes.Conn, pair *v1alpha1.LockstepPair, q *v1alpha1.LockstepQueue) error {
	q.Status.Pair = pair.Name
	if pair.Spec.Fleet.Pair == "" {
		return nil
	}
	node, err := conn.Active(ctx, objects.New(pair).Addresses())
	if err != nil {
		return err
	}
	name := queueName(q)
	for p, err := range node.Placements(ctx, admin.PlacementOptions{Pattern: name}) {
		if err != nil {
			return err
		}
		if p.GetQueue() == name {
			q.Status.Pair = p.GetPair()
		}
	}
	return nil
}

func (r *QueueReconciler) finalize(ctx context.Context, q, base *v1alpha1.LockstepQueue) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(q, queueFinalizer) {
		return ctrl.Result{}, nil
	}
	if err := r.delete(ctx, q); err != nil && !errors.Is(err, errNoPair) {
		return r.result(ctx, q, base, err)
	}
	controllerutil.RemoveFinalizer(q, queueFinalizer)
	if err := kube.IgnoreNotFound(r.Patch(ctx, q, kube.MergeFrom(base))); err != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer: %w", err)
	}
	return ctrl.Result{}, nil
}

func (r *QueueReconciler) delete(ctx context.Context, q *v1alpha1.LockstepQueue) error {
	if q.Spec.DeletionPolicy != v1alpha1.Delete && q.Spec.DeletionPolicy != v1alpha1.DeleteIfEmpty {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	conn, _, err := r.open(ctx, q)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Admin.DeleteQueue(ctx, queueName(q), q.Spec.DeletionPolicy == v1alpha1.DeleteIfEmpty)
	if errors.Is(err, client.ErrQueueNotFound) {
		return nil
	}
	return err
}

// queueConfig converts the options of a queue.
func queueConfig(c v1alpha1.QueueConfig) (admin.QueueConfig, error) {
	out := admin.QueueConfig{
		MaxMessages: uint64(c.MaxMessages), MaxBytes: uint64(c.MaxBytes), MaxDeliveries: uint32(c.MaxDeliveries),
		DeadLetter: c.DeadLetter, DeadLetterExpired: c.DeadLetterExpired, TTL: duration(c.TTL), Delay: duration(c.Delay),
		RedeliveryDelay: duration(c.RedeliveryDelay), RedeliveryMaxDelay: duration(c.RedeliveryMaxDelay),
		RetentionAge: duration(c.RetentionAge), RetentionBytes: uint64(c.RetentionBytes),
		RetentionMessages: uint64(c.RetentionMessages), Priorities: c.Priorities, Exclusive: c.Exclusive,
		AckTimeout: duration(c.AckTimeout), DedupWindow: duration(c.DedupWindow), DedupMax: uint64(c.DedupMax),
	}
	var err error
	if c.RedeliveryMultiplier != "" {
		if out.RedeliveryMultiplier, err = strconv.ParseFloat(c.RedeliveryMultiplier, 64); err != nil {
			return out, fmt.Errorf("%w: redeliveryMultiplier %q", client.ErrInvalid, c.RedeliveryMultiplier)
		}
	}
	if c.Overflow != "" {
		out.Overflow, err = admin.ParseOverflow(c.Overflow)
	}
	return out, err
}

func duration(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}
