// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// upgrading is a pair with a witness. All pods are ready and have the old template; node 0 is active.
type upgrading struct {
	*PairReconciler

	pair *v1alpha1.LockstepPair
	o    *observed
}

func newUpgrading(t *testing.T) *upgrading {
	t.Helper()
	pair := &v1alpha1.LockstepPair{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: "data"}}
	set := func(name string) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2},
			Status:     appsv1.StatefulSetStatus{ObservedGeneration: 2, UpdateRevision: "new"},
		}
	}
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: "data", UID: types.UID(name),
				Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: "old"},
			},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	o := &observed{
		p: objects.New(pair), applied: 2, appliedWitness: 2, set: set("prod"), witness: set("prod-witness"),
		witnessPod: pod("prod-witness-0"), pods: [objects.Nodes]*corev1.Pod{pod("prod-0"), pod("prod-1")},
		statuses: [objects.Nodes]*pb.GetStatusResponse{{Role: pb.Role_ROLE_ACTIVE}, {Role: pb.Role_ROLE_STANDBY}},
	}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(o.witnessPod.DeepCopy(),
		o.pods[0].DeepCopy(), o.pods[1].DeepCopy()).Build()
	return &upgrading{&PairReconciler{Client: c, Events: events.NewFakeRecorder(100)}, pair, o}
}

// step executes a step, and returns its reason and the name of the pod that was deleted.
func (u *upgrading) step(t *testing.T) (reason, deleted string) {
	t.Helper()
	p, err := u.upgrade(t.Context(), u.pair, u.o)
	require.NoError(t, err)
	for _, pod := range []*corev1.Pod{u.o.witnessPod, u.o.pods[0], u.o.pods[1]} {
		err := u.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
		if apierrors.IsNotFound(err) {
			require.Empty(t, deleted)
			deleted = pod.Name
			continue
		}
		require.NoError(t, err)
	}
	return p.reason, deleted
}

func setUpdated(pods ...*corev1.Pod) {
	for _, pod := range pods {
		pod.Labels[appsv1.ControllerRevisionHashLabelKey] = "new"
	}
}

func notReady(pod *corev1.Pod) { pod.Status.Conditions = nil }

func TestUpgradeOrder(t *testing.T) {
	for name, c := range map[string]struct {
		state           func(o *observed)
		reason, deleted string
	}{
		"witness first":  {func(*observed) {}, "ReplacingWitness", "prod-witness-0"},
		"then standby":   {func(o *observed) { setUpdated(o.witnessPod) }, "ReplacingStandby", "prod-1"},
		"not in sync":    {func(o *observed) { o.statuses[1].Role = pb.Role_ROLE_CATCHING_UP }, "NotInSync", ""},
		"other template": {func(o *observed) { o.applied++ }, "Updating", ""},
		"witness is stopping": {
			func(o *observed) { now := metav1.Now(); o.witnessPod.DeletionTimestamp = &now }, "Creating", "",
		},
		"witness is not ready": {
			func(o *observed) { setUpdated(o.witnessPod); notReady(o.witnessPod) }, "WitnessNotReady", "",
		},
		"witness cannot start": {
			func(o *observed) { notReady(o.witnessPod); o.statuses[0] = nil }, "ReplacingWitness", "prod-witness-0",
		},
		"standby is not ready": {
			func(o *observed) { setUpdated(o.witnessPod); notReady(o.pods[1]) }, "NotInSync", "",
		},
		"standby cannot start": {
			func(o *observed) {
				setUpdated(o.witnessPod)
				notReady(o.pods[1])
				o.statuses[1], o.statuses[0].Role = nil, pb.Role_ROLE_ACTIVE_ALONE
			}, "ReplacingBroken", "prod-1",
		},
		"updated standby cannot start": {
			func(o *observed) {
				setUpdated(o.witnessPod, o.pods[1])
				notReady(o.pods[1])
				o.statuses[1], o.statuses[0].Role = nil, pb.Role_ROLE_ACTIVE_ALONE
			}, "NotInSync", "",
		},
		"complete": {func(o *observed) { setUpdated(o.witnessPod, o.pods[0], o.pods[1]) }, "Complete", ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(t)
			c.state(u.o)
			reason, deleted := u.step(t)
			require.Equal(t, c.reason, reason)
			require.Equal(t, c.deleted, deleted)
		})
	}
}
