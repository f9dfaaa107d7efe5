// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	lockstep "github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Phases of a drain.
const (
	phaseDraining = "Draining"
	phaseStopping = "Stopping"
)

// errWait is returned by a step of a drain that must be repeated later.
var errWait = errors.New("waiting")

func wait(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errWait}, args...)...)
}

// finalize executes one step of the removal of a pair from its fleet. After the last step, or if no drain is required,
// it permits the deletion of the resource.
func (r *PairReconciler) finalize(ctx context.Context, pair *v1alpha1.LockstepPair) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(pair, drainFinalizer) {
		return ctrl.Result{}, nil
	}
	drain, err := r.mustDrain(ctx, pair)
	if err != nil {
		return ctrl.Result{}, err
	}
	if drain {
		if pair.Status.Drain == nil {
			pair.Status.Drain = &v1alpha1.DrainStatus{Phase: phaseDraining}
		}
		limited, cancel := context.WithTimeout(ctx, requestLimit)
		defer cancel()
		done, err := r.drainStep(limited, pair)
		if err != nil || !done {
			return r.draining(pair, err)
		}
	}
	base := pair.DeepCopy()
	controllerutil.RemoveFinalizer(pair, drainFinalizer)
	if err := client.IgnoreNotFound(r.Patch(ctx, pair, client.MergeFrom(base))); err != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer: %w", err)
	}
	return ctrl.Result{}, nil
}

func (r *PairReconciler) draining(pair *v1alpha1.LockstepPair, err error) (ctrl.Result, error) {
	d := pair.Status.Drain
	d.Message = ""
	if err != nil {
		d.Message = strings.TrimPrefix(err.Error(), errWait.Error()+": ")
	}
	r.condition(pair, v1alpha1.ConditionProgressing, true, d.Phase,
		fmt.Sprintf("%d queues remain%s", d.Queues, because(err)))
	failed := err != nil && !errors.Is(err, errWait)
	if failed {
		r.condition(pair, v1alpha1.ConditionDegraded, true, "DrainFailed", because(err))
	} else {
		r.condition(pair, v1alpha1.ConditionDegraded, false, "AsExpected", "the pair is being drained")
	}
	pair.Status.ObservedGeneration = pair.Generation
	if apierrors.IsConflict(err) {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.StepInterval}, nil
}

// mustDrain reports whether the queues of a deleted pair must be moved. It returns false for a pair without a fleet, if
// the LockstepFleet is deleted, or if SkipDrainAnnotation is set.
func (r *PairReconciler) mustDrain(ctx context.Context, pair *v1alpha1.LockstepPair) (bool, error) {
	if pair.Spec.Fleet.Pair == "" || pair.Annotations[v1alpha1.SkipDrainAnnotation] == "true" {
		return false, nil
	}
	owner := metav1.GetControllerOf(pair)
	if owner == nil {
		return true, nil
	}
	var fleet v1alpha1.LockstepFleet
	err := r.Get(ctx, types.NamespacedName{Namespace: pair.Namespace, Name: owner.Name}, &fleet)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read LockstepFleet %s: %w", owner.Name, err)
	}
	return fleet.UID == owner.UID && fleet.DeletionTimestamp.IsZero(), nil
}

func (r *PairReconciler) drainStep(ctx context.Context, pair *v1alpha1.LockstepPair) (done bool, _ error) {
	o := &observed{p: objects.New(pair)}
	defer o.close()
	if err := r.observe(ctx, pair, o); err != nil {
		return false, err
	}
	if o.conn == nil {
		return false, o.err
	}
	if pair.Status.Drain.Phase == phaseStopping {
		return r.stop(ctx, pair, o)
	}
	if o.set == nil {
		return true, nil // it was never created
	}
	if err := r.apply(ctx, pair, o); err != nil { // restores deleted objects
		return false, err
	}
	i := o.active()
	if i < 0 {
		return false, wait("the pair has no active node%s; if it is lost permanently, set the annotation %s=true",
			because(o.err), v1alpha1.SkipDrainAnnotation)
	}
	node, err := o.conn.Node(i)
	if err != nil {
		return false, err
	}
	left, err := r.leave(ctx, pair, o, node)
	if err != nil || !left {
		return false, err
	}
	pair.Status.Drain.Phase = phaseStopping
	r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "LeftFleet", "LeaveFleet", "the pair has left the fleet")
	return false, nil
}

// leave moves the queues, and removes the pair from the fleet when it has none. It reports whether the pair has left.
func (r *PairReconciler) leave(
	ctx context.Context, pair *v1alpha1.LockstepPair, o *observed, node *admin.Node,
) (bool, error) {
	fleet, err := node.Fleet(ctx)
	if err != nil {
		return false, err
	}
	name := pair.Spec.Fleet.Pair
	i := slices.IndexFunc(fleet.GetPairs(), func(p *pb.FleetPair) bool { return p.GetName() == name })
	if fleet.GetMembership().GetLeft() || i < 0 && fleet.GetMembership().GetFleetId() == "" &&
		fleet.GetDirectory().GetCurrent() {
		return true, nil
	}
	if i >= 0 && fleet.GetPairs()[i].GetState() != pb.PairState_PAIR_STATE_DRAINING {
		if err := node.SetPairState(ctx, name, pb.PairState_PAIR_STATE_DRAINING); err != nil {
			return false, err
		}
		r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "Draining", "Drain", "the pair is draining")
	}
	s, err := newSurvey(ctx, o.conn, node, fleet, name)
	if err != nil {
		return false, err
	}
	pair.Status.Drain.Queues, pair.Status.Drain.Blocked = int64(s.remaining), nil
	switch {
	case s.remaining > 0:
		return false, r.move(ctx, pair, fleet.GetPairs(), s)
	case len(s.busy) > 0:
		return false, wait("moves from or to the pair have not ended")
	}
	return true, node.LeaveFleet(ctx)
}

// move plans the drain of the pair as lockstep fleet drain does, and begins a move to each target that is not busy.
func (r *PairReconciler) move(
	ctx context.Context, pair *v1alpha1.LockstepPair, pairs []*pb.FleetPair, s *survey,
) error {
	targets, err := r.targets(ctx, pair, pairs, s)
	defer func() {
		for _, t := range targets {
			t.conn.Close()
		}
	}()
	failed := map[string]failure{}
	for _, t := range targets {
		addFailures(failed, t.moves, s.pair)
	}
	plan := balance.Drain(&s.Fleet, s.pair, nil)
	moves, blocked := next(&plan, s, failed)
	for _, m := range moves {
		refused, e := r.begin(ctx, pair, m.To, targets[m.To].node, m.Groups)
		blocked, err = append(blocked, refused...), errors.Join(err, e)
	}
	blocked = append(blocked, blockedIn(&plan)...)
	pair.Status.Drain.Blocked = merge(slices.Clone(blocked))
	// The reason no-pair is not a failure, because other pairs become live again.
	failures := merge(slices.DeleteFunc(blocked, func(b v1alpha1.BlockedQueues) bool {
		return b.Reason == string(balance.NoPair)
	}))
	switch {
	case len(failures) > 0:
		return errors.Join(err, errBlocked(failures))
	case err != nil || len(moves) > 0:
		return err
	case len(targets) == 0 && len(s.busy) == 0:
		return wait("no other pair of the fleet is open and live")
	}
	return wait("queues are being moved")
}

// target is a pair to which queues can be moved.
type target struct {
	conn   *nodes.Conn
	node   *admin.Node     // the active node
	moves  []*pb.FleetMove // includes the last moves to the pair that have ended
	queues []balance.Queue
}

// targets adds the other live pairs to s, and returns those that are open, by name. It returns an error if none of
// these is reachable, and no queues are being moved.
func (r *PairReconciler) targets(
	ctx context.Context, pair *v1alpha1.LockstepPair, pairs []*pb.FleetPair, s *survey,
) (map[string]*target, error) {
	targets := map[string]*target{}
	var failed error
	for _, p := range pairs {
		if p.GetName() == s.pair || !p.GetLive() {
			continue
		}
		isOpen := p.GetState() == pb.PairState_PAIR_STATE_OPEN
		t, err := r.connect(ctx, pair, p)
		switch {
		case err != nil && isOpen:
			failed = errors.Join(failed, err)
		case err != nil:
		case isOpen:
			targets[p.GetName()] = t
			s.addPair(p, t.queues)
		default:
			t.conn.Close()
			s.addPair(p, t.queues)
		}
	}
	if len(targets) > 0 || len(s.busy) > 0 {
		failed = nil
	}
	return targets, failed
}

func (r *PairReconciler) connect(
	ctx context.Context, pair *v1alpha1.LockstepPair, p *pb.FleetPair,
) (*target, error) {
	ctx, cancel := context.WithTimeout(ctx, otherLimit)
	defer cancel()
	conn, err := r.Nodes.OpenOther(ctx, pair, p.GetAddresses())
	if err != nil {
		return nil, err
	}
	t := &target{conn: conn}
	if t.node, err = conn.Active(ctx, p.GetAddresses()); err == nil {
		var list *pb.ListMovesResponse
		list, err = t.node.Moves(ctx)
		t.moves = list.GetMoves()
	}
	if err == nil {
		t.queues, err = queuesOf(ctx, conn.Admin, p.GetName())
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("pair %s: %w", p.GetName(), err)
	}
	return t, nil
}

// begin begins a move of groups. If the target refuses it, begin tries the groups separately, until a move has begun.
// It returns the groups that were refused separately.
func (r *PairReconciler) begin(
	ctx context.Context, pair *v1alpha1.LockstepPair, to string, node *admin.Node, groups [][]string,
) (refused []v1alpha1.BlockedQueues, _ error) {
	names := slices.Concat(groups...)
	_, err := node.MoveQueues(ctx, names, "")
	switch {
	case err == nil:
		r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "Moving", "Move",
			"%d queues are moved to pair %s, beginning with %s", len(names), to, names[0])
		return nil, nil
	case !errors.Is(err, lockstep.ErrInvalid) && !errors.Is(err, lockstep.ErrRefused):
		return nil, fmt.Errorf("move to pair %s: %w", to, err)
	case len(groups) == 1:
		return []v1alpha1.BlockedQueues{blockedGroup(names, balance.Failed, err.Error())}, nil
	}
	for i := range groups {
		one, err := r.begin(ctx, pair, to, node, groups[i:i+1])
		if refused = append(refused, one...); err != nil || len(one) == 0 {
			return refused, err
		}
	}
	return refused, nil
}

// stop stops the standby first and then the active node. If the standby ran while the active node stops, it would
// become active, and the pair would join the fleet again.
func (r *PairReconciler) stop(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) (done bool, _ error) {
	if o.set == nil {
		return o.pods[0] == nil && o.pods[1] == nil, nil
	}
	start := 0
	if o.set.Spec.Ordinals != nil {
		start = int(o.set.Spec.Ordinals.Start)
	}
	switch *o.set.Spec.Replicas {
	case objects.Nodes:
		i := o.active()
		if i < 0 {
			return false, wait("the pair has no active node%s", because(o.err))
		}
		return false, r.scale(ctx, o.set, 1, i)
	case 1:
		if o.pods[1-start] != nil {
			return false, wait("pod %s is being stopped", o.p.PodName(1-start))
		}
		node, err := o.conn.Node(start)
		if err != nil {
			return false, err
		}
		left, err := r.leave(ctx, pair, o, node) // again, if the node was restarted
		if err != nil || !left {
			return false, err
		}
		return false, r.scale(ctx, o.set, 0, start)
	}
	if o.pods[0] != nil || o.pods[1] != nil {
		return false, wait("the pods are being stopped")
	}
	return true, nil
}

// scale changes the number of pods, and the number of the first pod. After a success, it returns errWait.
func (r *PairReconciler) scale(ctx context.Context, set *appsv1.StatefulSet, replicas, start int) error {
	base := set.DeepCopy()
	number := int32(replicas)
	set.Spec.Replicas, set.Spec.Ordinals = &number, &appsv1.StatefulSetOrdinals{Start: int32(start)}
	if err := r.Patch(ctx, set, client.MergeFrom(base)); err != nil {
		return fmt.Errorf("scale StatefulSet %s: %w", set.Name, err)
	}
	return wait("scaling StatefulSet %s to %d", set.Name, replicas)
}
