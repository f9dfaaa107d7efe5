// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
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
	moves, err := node.Moves(ctx) // first: the queues of a move that ends in the meantime count as moving
	if err != nil {
		return false, err
	}
	queues, remaining, err := ownQueues(ctx, o.conn, node, name)
	if err != nil {
		return false, err
	}
	pair.Status.Drain.Queues, pair.Status.Drain.Blocked = int64(remaining), nil
	busy, unfinished := targets(moves.GetMoves(), name)
	switch {
	case remaining > 0:
		return false, r.move(ctx, pair, fleet.GetPairs(), queues, busy)
	case unfinished > 0:
		return false, wait("%d moves have not ended", unfinished)
	}
	return true, node.LeaveFleet(ctx)
}

// targets returns the queues in the unfinished moves from and to a pair, by target, and the number of these moves.
func targets(moves []*pb.FleetMove, pair string) (busy map[string][]string, unfinished int) {
	busy = map[string][]string{}
	for _, m := range moves {
		if m.GetPhase() == pb.MovePhase_MOVE_PHASE_DONE || m.GetPhase() == pb.MovePhase_MOVE_PHASE_NOT_MOVED ||
			m.GetFrom() != pair && m.GetTo() != pair {
			continue
		}
		unfinished++
		busy[m.GetTo()] = append(busy[m.GetTo()], m.GetQueues()...)
	}
	return busy, unfinished
}

// queueLinks contains the name of a queue, its placement group, and the queues that must be moved with it.
type queueLinks struct {
	name, group string
	with        []string
	// reason is set if the queue cannot be moved, and detail describes it.
	reason, detail string
}

// ownQueues returns the queues of the pair. remaining also counts the queues that the directory assigns to the pair,
// but that are being created, or were already moved.
func ownQueues(
	ctx context.Context, conn *nodes.Conn, node *admin.Node, pair string,
) (queues []queueLinks, remaining int, _ error) {
	groups := map[string]string{}
	for p, err := range node.Placements(ctx, admin.PlacementOptions{Pair: pair}) {
		if err != nil {
			return nil, 0, err
		}
		groups[p.GetQueue()] = p.GetGroup()
	}
	fixed, err := conn.Admin.FixedQueues(ctx)
	if err != nil {
		return nil, 0, err
	}
	for q, err := range conn.Admin.Queues(ctx, "") {
		if err != nil {
			return nil, 0, err
		}
		group, assigned := groups[q.Name]
		l := queueLinks{name: q.Name, group: group, with: q.References()}
		f, isFixed := fixed[q.Name]
		switch {
		case !assigned:
			l.reason, l.detail = blockedUnassigned, "the directory does not assign "+q.Name+" to the pair"
		case isFixed && f.Policy != "":
			l.reason, l.detail = blockedPolicy, q.Name+" is the dead-letter queue of policy "+f.Policy
		case isFixed:
			l.reason, l.detail = blockedPrepared, q.Name+" is used by transaction "+f.XID
		}
		queues = append(queues, l)
		delete(groups, q.Name)
	}
	slices.SortFunc(queues, func(a, b queueLinks) int { return strings.Compare(a.name, b.name) })
	return queues, len(queues) + len(groups), nil
}

// move begins a move to each target that is open, live and not busy.
func (r *PairReconciler) move(
	ctx context.Context, pair *v1alpha1.LockstepPair, pairs []*pb.FleetPair, queues []queueLinks,
	busy map[string][]string,
) error {
	moving := map[string]bool{}
	for _, names := range busy {
		for _, name := range names {
			moving[name] = true
		}
	}
	open := openTargets(pairs, pair.Spec.Fleet.Pair)
	if len(open) == 0 {
		return wait("no other pair of the fleet is open and live")
	}
	failed := map[string]failure{}
	var all, free []*target
	defer func() {
		for _, t := range all {
			t.conn.Close()
		}
	}()
	var err error
	for _, p := range open {
		t, unreachable := r.connect(ctx, pair, p)
		if unreachable != nil {
			err = errors.Join(err, unreachable)
			continue
		}
		all = append(all, t)
		addFailures(failed, t.moves, pair.Spec.Fleet.Pair)
		if len(busy[p.GetName()]) == 0 {
			free = append(free, t)
		}
	}
	batches, blocked := batch(queues, moving, failed, len(free))
	if len(free) > 0 || len(moving) > 0 {
		err = nil // other targets are reachable
	}
	for i, groups := range batches {
		refused, e := r.begin(ctx, pair, free[i], groups)
		blocked, err = append(blocked, refused...), errors.Join(err, e)
	}
	if pair.Status.Drain.Blocked = merge(blocked); len(blocked) > 0 {
		err = errors.Join(err, errBlocked(pair.Status.Drain.Blocked))
	}
	if err == nil && len(batches) == 0 {
		return wait("queues are being moved")
	}
	return err
}

// openTargets returns the other pairs that are open and live, those with the most free space first.
func openTargets(pairs []*pb.FleetPair, pair string) []*pb.FleetPair {
	open := slices.DeleteFunc(slices.Clone(pairs), func(p *pb.FleetPair) bool {
		return p.GetName() == pair || !p.GetLive() || p.GetState() != pb.PairState_PAIR_STATE_OPEN
	})
	slices.SortFunc(open, func(a, b *pb.FleetPair) int {
		return cmp.Or(cmp.Compare(b.GetLoad().GetFreeBytes(), a.GetLoad().GetFreeBytes()),
			strings.Compare(a.GetName(), b.GetName()))
	})
	return open
}

// target is a pair to which queues can be moved.
type target struct {
	name  string
	conn  *nodes.Conn
	node  *admin.Node     // the active node
	moves []*pb.FleetMove // includes the last moves to the pair that have ended
}

func (r *PairReconciler) connect(
	ctx context.Context, pair *v1alpha1.LockstepPair, p *pb.FleetPair,
) (*target, error) {
	conn, err := r.Nodes.OpenOther(ctx, pair, p.GetAddresses())
	if err != nil {
		return nil, err
	}
	t := &target{name: p.GetName(), conn: conn}
	if t.node, err = conn.Active(ctx, p.GetAddresses()); err == nil {
		var list *pb.ListMovesResponse
		list, err = t.node.Moves(ctx)
		t.moves = list.GetMoves()
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
	ctx context.Context, pair *v1alpha1.LockstepPair, t *target, groups [][]string,
) (refused []v1alpha1.BlockedQueues, _ error) {
	names := slices.Concat(groups...)
	_, err := t.node.MoveQueues(ctx, names, "")
	switch {
	case err == nil:
		r.Events.Eventf(pair, nil, corev1.EventTypeNormal, "Moving", "Move",
			"%d queues are moved to pair %s, beginning with %s", len(names), t.name, names[0])
		return nil, nil
	case !errors.Is(err, lockstep.ErrInvalid) && !errors.Is(err, lockstep.ErrRefused):
		return nil, fmt.Errorf("move to pair %s: %w", t.name, err)
	case len(groups) == 1:
		return []v1alpha1.BlockedQueues{blockedGroup(names, blockedFailed, err.Error())}, nil
	}
	for i := range groups {
		one, err := r.begin(ctx, pair, t, groups[i:i+1])
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
