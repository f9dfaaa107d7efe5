// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func pairIn(name string, isHealthy bool) *v1alpha1.LockstepPair {
	p := &v1alpha1.LockstepPair{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}}
	p.Status.ObservedGeneration = 2
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionInSync} {
		setCondition(&p.Status.Conditions, 2, kind, isHealthy, "Test", "")
	}
	setCondition(&p.Status.Conditions, 2, v1alpha1.ConditionProgressing, false, "Test", "")
	return p
}

func TestNextPair(t *testing.T) {
	a, b, broken := pairIn("a", true), pairIn("b", true), pairIn("broken", false)
	outdated := pairIn("outdated", true)
	outdated.Generation++
	type pairs = []*v1alpha1.LockstepPair
	require.Nil(t, nextPair(nil, pairs{a}))
	require.Equal(t, a, nextPair(pairs{a, b}, nil))
	require.Equal(t, b, nextPair(pairs{b}, pairs{a}))
	require.Equal(t, broken, nextPair(pairs{a, broken}, nil), "a change can repair a pair")
	require.Nil(t, nextPair(pairs{a}, pairs{broken}), "the last change has not succeeded")
	require.Nil(t, nextPair(pairs{broken}, pairs{outdated}), "the last change is not observed yet")
}

// Groups of a canceled move are moved separately, after the others, in the order of their last attempts.
func TestNextAfterFailures(t *testing.T) {
	queues := []string{"a", "b", "c", "d", "e"} // c and d are a group
	failed := map[string]failure{}
	canceled := func(epoch uint64, names ...string) {
		addFailures(failed, []*pb.FleetMove{
			{Epoch: epoch, From: "b", Queues: names, Phase: pb.MovePhase_MOVE_PHASE_NOT_MOVED, Error: "in use"},
			{Epoch: epoch + 100, From: "b", Queues: names, Phase: pb.MovePhase_MOVE_PHASE_DONE},
			{Epoch: epoch + 100, From: "x", Queues: names, Phase: pb.MovePhase_MOVE_PHASE_NOT_MOVED},
		}, "b")
	}
	plan := func(s *survey) (groups [][]string, blocked []v1alpha1.BlockedQueues) {
		s.pair, s.Pairs = "b", []balance.Pair{
			{Member: fleet.Member{Name: "b"}}, {Member: fleet.Member{Name: "a", State: fleet.StateOpen}, Live: true},
		}
		for _, name := range queues {
			q := balance.Queue{Name: name, Pair: "b"}
			if name == "c" {
				q.Links = []string{"d"}
			}
			s.Queues = append(s.Queues, q)
		}
		p := balance.Drain(&s.Fleet, "b", nil)
		moves, blocked := next(&p, s, failed)
		for _, m := range moves {
			require.Equal(t, "a", m.To)
			groups = append(groups, m.Groups...)
		}
		return groups, blocked
	}
	groups, blocked := plan(&survey{})
	require.Empty(t, blocked)
	require.Equal(t, [][]string{{"a"}, {"b"}, {"c", "d"}, {"e"}}, groups)
	canceled(1, queues[:4]...)
	groups, blocked = plan(&survey{})
	require.Empty(t, blocked)
	require.Equal(t, [][]string{{"e"}}, groups)

	queues = queues[:4] // e was moved
	canceled(2, "a")
	canceled(3, "b")
	groups, blocked = plan(&survey{})
	require.Equal(t, [][]string{{"c", "d"}}, groups)
	a := v1alpha1.BlockedQueues{Queue: "a", Queues: 1, Reason: string(balance.Failed), Message: "in use"}
	b := v1alpha1.BlockedQueues{Queue: "b", Queues: 1, Reason: string(balance.Failed), Message: "in use"}
	require.Equal(t, []v1alpha1.BlockedQueues{a, b}, blocked)
	queues = queues[:2]
	groups, blocked = plan(&survey{})
	require.Equal(t, [][]string{{"a"}}, groups)
	require.Equal(t, []v1alpha1.BlockedQueues{a, b}, blocked)
	s := &survey{pair: "b", busy: map[string]bool{}, moving: map[string]bool{}}
	s.addMoves([]*pb.FleetMove{{From: "b", To: "a", Queues: []string{"a"}}})
	groups, blocked = plan(s)
	require.Empty(t, groups)
	require.Equal(t, []v1alpha1.BlockedQueues{a, b}, blocked, "also during another attempt")
}

func TestSurveyMoves(t *testing.T) {
	s := &survey{pair: "b", busy: map[string]bool{}, moving: map[string]bool{}}
	s.addMoves([]*pb.FleetMove{
		{From: "b", To: "a", Queues: []string{"q"}, Phase: pb.MovePhase_MOVE_PHASE_COPYING},
		{From: "b", To: "c", Queues: []string{"r"}, Phase: pb.MovePhase_MOVE_PHASE_DONE},
		{From: "a", To: "c", Queues: []string{"s"}},
		{From: "c", To: "b", Queues: []string{"t"}},
	})
	require.Len(t, s.Moves, 3)
	require.Equal(t, map[string]bool{"a": true, "b": true}, s.busy)
	require.Equal(t, map[string]bool{"q": true, "t": true}, s.moving)
}

func TestFleetPairs(t *testing.T) {
	fleet := &v1alpha1.LockstepFleet{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "data"}}
	fleet.Spec.Count = 2
	fleet.Spec.Template.Spec.Coordinator.Etcd.Endpoints = []string{"etcd:2379"}
	fleet.Spec.Template.Spec.Fleet.Labels = map[string]string{"region": "eu"}
	pairs := pairsOf(fleet)
	require.Equal(t, []v1alpha1.FleetPair{{Name: "a"}, {Name: "b"}}, pairs)
	a, err := desired(fleet, pairs[0])
	require.NoError(t, err)
	require.Equal(t, "shop-a", a.Name)
	require.Equal(t, v1alpha1.FleetMember{
		Pair: "a", Prefix: "/lockstep-fleets/data/shop", Endpoints: []string{"etcd:2379"},
		Labels: map[string]string{"region": "eu"},
	}, a.Spec.Fleet)
	b, err := desired(fleet, v1alpha1.FleetPair{
		Name: "b", Labels: map[string]string{"disk": "ssd"}, NodeSelector: map[string]string{"zone": "b"},
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"region": "eu", "disk": "ssd"}, b.Spec.Fleet.Labels)
	require.Equal(t, map[string]string{"zone": "b"}, b.Spec.NodeSelector)
	require.NotEqual(t, a.Annotations[specAnnotation], b.Annotations[specAnnotation])
	require.Equal(t, map[string]string{"region": "eu"}, fleet.Spec.Template.Spec.Fleet.Labels)
}

// patched is a client that returns an error for patches.
type patched struct {
	client.Client

	err error
}

func (c patched) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return c.err
}

func (c patched) Status() client.SubResourceWriter { return patchedStatus{err: c.err} }

type patchedStatus struct {
	client.SubResourceWriter

	err error
}

func (s patchedStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return s.err
}

func TestFinalizeGone(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "locksteppairs"}, "shop-b")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "locksteppairs"}, "shop-b", nil)
	for err, want := range map[error]error{nil: nil, gone: nil, conflict: conflict} {
		pair := pairIn("shop-b", true)
		pair.Finalizers = []string{drainFinalizer}
		_, failed := (&PairReconciler{Client: patched{err: err}}).finalize(t.Context(), pair)
		if want == nil {
			require.NoError(t, failed)
		} else {
			require.ErrorIs(t, failed, want)
		}
	}
}

// A LockstepQueue that was deleted in the meantime is not an error.
func TestQueueGone(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "lockstepqueues"}, "orders")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "lockstepqueues"}, "orders", nil)
	for err, want := range map[error]error{nil: nil, gone: nil, conflict: conflict} {
		r := &QueueReconciler{Client: patched{err: err}, Events: events.NewFakeRecorder(10)}
		q := &v1alpha1.LockstepQueue{ObjectMeta: metav1.ObjectMeta{Name: "orders", Finalizers: []string{queueFinalizer}}}
		_, written := r.result(t.Context(), q.DeepCopy(), q, nil)
		_, removed := r.finalize(t.Context(), q.DeepCopy(), q)
		for _, failed := range []error{written, removed} {
			if want == nil {
				require.NoError(t, failed)
			} else {
				require.ErrorIs(t, failed, want)
			}
		}
	}
}

// The messages of the conditions of a fleet contain the names of the pairs.
// The status names the pair for which an update waits: a changed pair that is not healthy yet.
func TestFleetUpdateWaits(t *testing.T) {
	a, b, c := pairIn("a", true), pairIn("b", false), pairIn("c", true)
	wanted := []*v1alpha1.LockstepPair{a.DeepCopy(), b.DeepCopy(), c.DeepCopy()}
	for _, p := range wanted {
		p.Annotations = map[string]string{specAnnotation: "new"}
	}
	a.Annotations, b.Annotations = wanted[0].Annotations, wanted[1].Annotations
	c.Annotations = map[string]string{specAnnotation: "old"}
	r := &FleetReconciler{}
	for _, last := range []*v1alpha1.LockstepPair{c, wanted[2]} { // also if it is the last changed pair
		current, err := r.update(t.Context(), &v1alpha1.LockstepFleet{}, wanted, []*v1alpha1.LockstepPair{a, b, last})
		require.NoError(t, err)
		require.Equal(t, "b", current)
	}
}

func TestFleetConditions(t *testing.T) {
	fleet := &v1alpha1.LockstepFleet{}
	wanted := []*v1alpha1.LockstepPair{pairIn("shop-a", true), pairIn("shop-b", false), pairIn("shop-c", false)}
	missing, removed := pairIn("shop-d", true), pairIn("shop-e", true)
	r := &FleetReconciler{Events: events.NewFakeRecorder(10)}
	report := func(wanted, existing []*v1alpha1.LockstepPair) (status metav1.ConditionStatus, message string) {
		r.report(fleet, wanted, existing, "")
		c := meta.FindStatusCondition(fleet.Status.Conditions, v1alpha1.ConditionReady)
		return c.Status, c.Message
	}
	status, message := report(wanted, wanted)
	require.Equal(t, metav1.ConditionFalse, status)
	require.Contains(t, message, "shop-b, shop-c")
	require.NotContains(t, message, "[")
	// A pair that is being removed does not replace a missing one.
	for _, existing := range [][]*v1alpha1.LockstepPair{wanted[:1], {wanted[0], removed}} {
		status, message = report([]*v1alpha1.LockstepPair{wanted[0], missing}, existing)
		require.Equal(t, metav1.ConditionFalse, status)
		require.Contains(t, message, "shop-d")
	}
	status, _ = report(wanted[:1], wanted[:1])
	require.Equal(t, metav1.ConditionTrue, status)
}
