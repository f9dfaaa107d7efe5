// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// drainFinalizer delays the deletion of a pair of a fleet until its queues have been moved.
const drainFinalizer = v1alpha1.Group + "/drain"

const (
	// checkInterval is the default interval between two checks of an unchanged pair.
	checkInterval = 10 * time.Second
	// stepInterval is the default interval while a pair is being changed.
	stepInterval = 2 * time.Second
	// requestLimit is the timeout of all requests to nodes in one step.
	requestLimit = 30 * time.Second
)

// PairReconciler reconciles LockstepPairs.
type PairReconciler struct {
	client.Client

	Nodes  *nodes.Dialer
	Events events.EventRecorder
	// Interval is the interval between two checks, and StepInterval that while a pair is being changed. Defaults 10 s and
	// 2 s.
	Interval, StepInterval time.Duration
}

// SetupWithManager registers the controller.
func (r *PairReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Interval == 0 {
		r.Interval = checkInterval
	}
	if r.StepInterval == 0 {
		r.StepInterval = stepInterval
	}
	err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.LockstepPair{}).
		Owns(&appsv1.StatefulSet{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.Service{}).Owns(&corev1.ServiceAccount{}).
		Owns(&policyv1.PodDisruptionBudget{}).Owns(&networkingv1.NetworkPolicy{}).
		Owns(&rbacv1.Role{}).Owns(&rbacv1.RoleBinding{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(instanceOf)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(instanceOf)).
		WithOptions(workers()).
		Complete(r)
	if err != nil {
		return fmt.Errorf("controller of pairs: %w", err)
	}
	return nil
}

// instanceOf returns the pair to which a pod or volume belongs according to its labels.
func instanceOf(_ context.Context, o client.Object) []reconcile.Request {
	labels := o.GetLabels()
	if labels[objects.LabelName] != "lockstep" || labels[objects.LabelInstance] == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{
		Namespace: o.GetNamespace(), Name: labels[objects.LabelInstance],
	}}}
}

// Reconcile changes the objects of a pair, and executes at most one step of an upgrade or a drain.
func (r *PairReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pair := &v1alpha1.LockstepPair{}
	if err := r.Get(ctx, req.NamespacedName, pair); err != nil {
		return ctrl.Result{}, unlessGone(err)
	}
	base := pair.DeepCopy()
	if pair.DeletionTimestamp.IsZero() && pair.Spec.Fleet.Pair != "" && controllerutil.AddFinalizer(pair, drainFinalizer) {
		if err := r.Patch(ctx, pair, client.MergeFrom(base)); err != nil {
			return ctrl.Result{}, fmt.Errorf("add the finalizer: %w", err)
		}
		base = pair.DeepCopy()
	}
	var result ctrl.Result
	var err error
	if pair.DeletionTimestamp.IsZero() {
		result, err = r.sync(ctx, pair)
	} else {
		result, err = r.finalize(ctx, pair)
	}
	if !equality.Semantic.DeepEqual(base.Status, pair.Status) {
		patch := r.Status().Patch(ctx, pair, client.MergeFrom(base))
		err = errors.Join(err, client.IgnoreNotFound(patch))
	}
	return result, err
}

func (r *PairReconciler) sync(ctx context.Context, pair *v1alpha1.LockstepPair) (ctrl.Result, error) {
	o := &observed{p: objects.New(pair)}
	defer o.close()
	pair.Status.Drain = nil
	if err := r.apply(ctx, pair, o); err != nil {
		return r.failed(pair, err)
	}
	if err := r.observe(ctx, pair, o); err != nil {
		return ctrl.Result{}, err
	}
	r.resize(ctx, pair, o)
	p, err := r.upgrade(ctx, pair, o)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.report(pair, o, p)
	if p.done {
		return ctrl.Result{RequeueAfter: r.Interval}, nil
	}
	return ctrl.Result{RequeueAfter: r.StepInterval}, nil
}

// failed reports an error that a person must correct, or returns it for a retry.
func (r *PairReconciler) failed(pair *v1alpha1.LockstepPair, err error) (ctrl.Result, error) {
	reason := ""
	switch {
	case errors.Is(err, errNotOwned):
		reason = "ObjectExists"
	case errors.Is(err, objects.ErrInvalid), apierrors.IsInvalid(err):
		reason = "InvalidSpec"
	default:
		return ctrl.Result{}, err
	}
	r.condition(pair, v1alpha1.ConditionDegraded, true, reason, err.Error())
	pair.Status.ObservedGeneration = pair.Generation
	return ctrl.Result{RequeueAfter: r.Interval}, nil
}

// condition sets a condition, and records an event after a change.
func (r *PairReconciler) condition(pair *v1alpha1.LockstepPair, kind string, is bool, reason, message string) {
	if !setCondition(&pair.Status.Conditions, pair.Generation, kind, is, reason, message) {
		return
	}
	level := corev1.EventTypeNormal
	if kind == v1alpha1.ConditionDegraded && is {
		level = corev1.EventTypeWarning
	}
	text := fmt.Sprintf("%s is %t: %s", kind, is, message)
	r.Events.Eventf(pair, nil, level, reason, "Reconcile", "%s", text)
}

// observed is the state of a pair at the start of a step.
type observed struct {
	p *objects.Pair
	// applied are the generations of the StatefulSets of nodes and witness after the last change.
	applied, appliedWitness int64
	set                     *appsv1.StatefulSet
	witness                 *appsv1.StatefulSet // nil without a witness
	witnessPod              *corev1.Pod         // nil if it does not exist
	pods                    [objects.Nodes]*corev1.Pod
	conn                    *nodes.Conn // nil if it could not be opened
	statuses                [objects.Nodes]*pb.GetStatusResponse
	err                     error // of the last requests to the nodes
}

func (o *observed) close() {
	if o.conn != nil {
		o.conn.Close()
	}
}

// apply creates and changes the objects. The update strategy of the StatefulSets is OnDelete: pods are not replaced.
func (r *PairReconciler) apply(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) error {
	all, err := o.p.All()
	if err != nil {
		return err
	}
	for _, object := range all {
		if _, err := apply(ctx, r.Client, pair, object); err != nil {
			return err
		}
	}
	set, err := o.p.StatefulSet()
	if err != nil {
		return err
	}
	if o.applied, err = r.applySet(ctx, pair, set); err != nil {
		return err
	}
	if w := o.p.Witness(); w != nil {
		o.appliedWitness, err = r.applySet(ctx, pair, w)
	}
	return err
}

// applySet applies a StatefulSet. It keeps the volume templates of an existing StatefulSet, which cannot be changed.
func (r *PairReconciler) applySet(
	ctx context.Context, pair *v1alpha1.LockstepPair, set *appsv1.StatefulSet,
) (int64, error) {
	existing := &appsv1.StatefulSet{}
	err := r.Get(ctx, client.ObjectKeyFromObject(set), existing)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read StatefulSet %s: %w", set.Name, err)
	}
	if err == nil {
		set.Spec.VolumeClaimTemplates = slices.Clone(existing.Spec.VolumeClaimTemplates)
		for i := range set.Spec.VolumeClaimTemplates {
			set.Spec.VolumeClaimTemplates[i].Status = corev1.PersistentVolumeClaimStatus{}
		}
	}
	return apply(ctx, r.Client, pair, set)
}

func (r *PairReconciler) observe(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) error {
	var err error
	if o.set, err = read[appsv1.StatefulSet](ctx, r, pair, o.p.Name()); err != nil {
		return err
	}
	if o.p.HasWitness() {
		if o.witness, err = read[appsv1.StatefulSet](ctx, r, pair, o.p.WitnessName()); err != nil {
			return err
		}
		if o.witnessPod, err = read[corev1.Pod](ctx, r, pair, o.p.WitnessName()+"-0"); err != nil {
			return err
		}
	}
	for i := range o.pods {
		if o.pods[i], err = read[corev1.Pod](ctx, r, pair, o.p.PodName(i)); err != nil {
			return err
		}
	}
	if o.conn, o.err = r.Nodes.Open(ctx, pair); o.err == nil {
		o.statuses, o.err = o.conn.Statuses(ctx)
	}
	return nil
}

// read returns an object in the namespace of a pair, or nil if it does not exist.
func read[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r *PairReconciler, pair *v1alpha1.LockstepPair, name string) (*T, error) {
	object := new(T)
	err := r.Get(ctx, types.NamespacedName{Namespace: pair.Namespace, Name: name}, P(object))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return object, nil
}

// active returns the index of the node that serves clients, or -1.
func (o *observed) active() int {
	found := -1
	for i, s := range o.statuses {
		if nodes.Serves(s) && (found < 0 || s.GetPair().GetTerm() > o.statuses[found].GetPair().GetTerm()) {
			found = i
		}
	}
	return found
}

// inSync returns the index of the active node if the other node is its in-sync standby, and both report the same
// cluster record; otherwise -1.
func (o *observed) inSync() int {
	i := o.active()
	if i < 0 {
		return -1
	}
	active, standby := o.statuses[i], o.statuses[1-i]
	if active.GetRole() == pb.Role_ROLE_ACTIVE && standby.GetRole() == pb.Role_ROLE_STANDBY &&
		active.GetPair().GetConfig() == standby.GetPair().GetConfig() {
		return i
	}
	return -1
}

// ready reports whether a pod is ready and is not being deleted.
func ready(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp.IsZero() &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// updated reports whether a pod has the current template of its StatefulSet.
func updated(pod *corev1.Pod, set *appsv1.StatefulSet) bool {
	return pod != nil && set != nil && pod.Labels[appsv1.ControllerRevisionHashLabelKey] == set.Status.UpdateRevision
}

// report sets the status.
func (r *PairReconciler) report(pair *v1alpha1.LockstepPair, o *observed, p progress) {
	s := &pair.Status
	s.ObservedGeneration, s.ActiveNode, s.Nodes = pair.Generation, "", nil
	active := o.active()
	if active >= 0 {
		s.ActiveNode = o.p.PodName(active)
	}
	for i, status := range o.statuses {
		n := v1alpha1.NodeStatus{
			Name: o.p.PodName(i), Version: status.GetVersion(), Ready: ready(o.pods[i]), Updated: updated(o.pods[i], o.set),
		}
		if status != nil {
			n.Role = strings.TrimPrefix(status.GetRole().String(), "ROLE_")
		}
		s.Nodes = append(s.Nodes, n)
	}
	if active >= 0 {
		r.condition(pair, v1alpha1.ConditionReady, true, "Serving", s.ActiveNode+" serves clients")
	} else {
		r.condition(pair, v1alpha1.ConditionReady, false, "NoActiveNode", "no node serves clients"+because(o.err))
	}
	if o.inSync() >= 0 {
		r.condition(pair, v1alpha1.ConditionInSync, true, "InSync", "the standby is in sync")
	} else {
		r.condition(pair, v1alpha1.ConditionInSync, false, "NotInSync",
			"the active node has no in-sync standby"+because(o.err))
	}
	r.condition(pair, v1alpha1.ConditionProgressing, !p.done, p.reason, p.message)
	reason, message := o.degraded(p)
	if reason == "" {
		r.condition(pair, v1alpha1.ConditionDegraded, false, "AsExpected", message)
		return
	}
	r.condition(pair, v1alpha1.ConditionDegraded, true, reason, message)
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
}

// degraded returns why a person may have to act; an empty reason if this is not necessary.
func (o *observed) degraded(p progress) (reason, message string) {
	if errors.Is(o.err, nodes.ErrCredentials) {
		return "Credentials", o.err.Error()
	}
	for _, s := range o.statuses {
		for _, c := range s.GetConditions() {
			if c.GetSeverity() == pb.Severity_SEVERITY_CRITICAL && p.done {
				return "CriticalCondition", fmt.Sprintf("%s at %s: %s", c.GetKind(), c.GetNodeName(), c.GetDetails())
			}
		}
	}
	if p.done && o.inSync() < 0 {
		return "NotInSync", "the pair is not in sync" + because(o.err)
	}
	return "", "the pair is in the expected state"
}
