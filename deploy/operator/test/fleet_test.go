// SPDX-License-Identifier: Apache-2.0

//go:build unix

package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (c *cluster) fleet(name string) *v1alpha1.LockstepFleet {
	c.t.Helper()
	f := &v1alpha1.LockstepFleet{}
	require.True(c.t, c.get(f, name))
	return f
}

func fleetSettled(f *v1alpha1.LockstepFleet) bool {
	ready, _ := condition(f.Status.Conditions, v1alpha1.ConditionReady)
	progressing, _ := condition(f.Status.Conditions, v1alpha1.ConditionProgressing)
	return f.Status.ObservedGeneration == f.Generation && ready == metav1.ConditionTrue &&
		progressing == metav1.ConditionFalse
}

// A fleet of real nodes is created, is upgraded one pair at a time, and removes a pair after its queues were moved.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("runs nodes")
	}
	k := newKubelet(t)
	c := newCluster(t, k.dial)
	k.start(c)
	c.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet", Namespace: namespace},
		StringData: map[string]string{"token": fleetToken},
	})
	c.create(&v1alpha1.LockstepFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: namespace},
		Spec: v1alpha1.FleetSpec{
			Count: 2, Directory: v1alpha1.FleetDirectory{TokenSecret: "fleet"}, Template: v1alpha1.PairTemplate{Spec: spec(c)},
		},
	})
	c.eventually("a fleet", func() bool { return fleetSettled(c.fleet("shop")) })
	adm := admin.New(k.client("shop-a"))
	c.eventually("members", func() bool { return len(members(t, adm)) == 2 })

	// Queues of one group on pair b, one of them with a dead-letter queue, and one queue on any pair.
	rule(t, c, adm)
	for _, name := range []string{"dead", "orders", "single"} {
		q := &v1alpha1.LockstepQueue{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec:       v1alpha1.QueueSpec{Fleet: "shop", Name: "b." + name},
		}
		if name == "orders" {
			q.Spec.Config = v1alpha1.QueueConfig{MaxDeliveries: 3, DeadLetter: "b.dead"}
		}
		c.create(q)
		c.eventually("queue "+name, func() bool { return c.queueReady(name) })
		require.True(t, c.get(q, name))
		require.Equal(t, "b", q.Status.Pair)
	}
	publish(t, k.client("shop-a"), "b.orders", 20)

	change(c, &v1alpha1.LockstepFleet{}, "shop", func(f *v1alpha1.LockstepFleet) { f.Spec.Template.Spec.Image.Tag = "v2" })
	c.eventually("an upgrade", func() bool { return fleetSettled(c.fleet("shop")) && len(k.stops()) == 4 })
	for i, s := range k.stops() {
		require.Equal(t, "ROLE_STANDBY", s.role)
		require.True(t, strings.HasPrefix(s.pod, fmt.Sprintf("shop-%c-", 'a'+i/2)), "stop %d is %s", i, s.pod)
	}

	// The rule prevents the moves until it is deleted.
	change(c, &v1alpha1.LockstepFleet{}, "shop", func(f *v1alpha1.LockstepFleet) { f.Spec.Count = 1 })
	c.eventually("blocked queues", func() bool {
		p := &v1alpha1.LockstepPair{}
		require.True(t, c.get(p, "shop-b"))
		return p.Status.Drain != nil && slices.ContainsFunc(p.Status.Drain.Blocked, func(b v1alpha1.BlockedQueues) bool {
			return b.Queue == "b.dead" && b.Queues == 2 && b.Reason == "placement-rule"
		})
	})
	require.NoError(t, node(t, adm).DeletePlacementRule(c.ctx, "b.*"))
	c.eventually("the removal", func() bool { return !c.get(&v1alpha1.LockstepPair{}, "shop-b") })
	require.Equal(t, []string{"a"}, members(t, adm))
	set := &appsv1.StatefulSet{}
	require.True(t, c.get(set, "shop-b")) // the garbage collector, which does not run here, deletes it
	require.Zero(t, *set.Spec.Replicas)
	for name, messages := range map[string]uint64{"b.dead": 0, "b.orders": 20, "b.single": 0} {
		q, err := adm.GetQueue(c.ctx, name)
		require.NoError(t, err)
		require.Equal(t, messages, q.Messages, name)
	}
	c.eventually("the pair of the queue", func() bool {
		q := &v1alpha1.LockstepQueue{}
		require.True(t, c.get(q, "orders"))
		return q.Status.Pair == "a"
	})
	c.eventually("a fleet of one pair", func() bool {
		f := c.fleet("shop")
		return fleetSettled(f) && f.Status.Pairs == 1
	})
	// The standby of the removed pair was stopped before its active node.
	last := k.stops()[4:]
	require.Len(t, last, 2)
	require.Equal(t, []string{"ROLE_STANDBY", "ROLE_ACTIVE_ALONE"}, []string{last[0].role, last[1].role})
}

func node(t *testing.T, adm *admin.Client) *admin.Node {
	t.Helper()
	for _, address := range adm.Addresses() {
		n, err := adm.Node(address)
		require.NoError(t, err)
		if _, err := n.Fleet(t.Context()); err == nil {
			return n
		}
	}
	require.Fail(t, "no node responds")
	return nil
}

func members(t *testing.T, adm *admin.Client) (names []string) {
	t.Helper()
	f, err := node(t, adm).Fleet(t.Context())
	require.NoError(t, err)
	for _, p := range f.GetPairs() {
		names = append(names, p.GetName())
	}
	slices.Sort(names)
	return names
}

// rule places new queues with the prefix b. on pair b.
func rule(t *testing.T, c *cluster, adm *admin.Client) {
	t.Helper()
	n := node(t, adm)
	require.NoError(t, n.PutPlacementRule(c.ctx, &pb.PlacementRule{Pattern: "b.*", Pair: "b"}))
	c.eventually("the rule", func() bool {
		f, err := n.Fleet(c.ctx)
		return err == nil && len(f.GetRules()) == 1
	})
}
