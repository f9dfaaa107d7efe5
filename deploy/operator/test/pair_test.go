// SPDX-License-Identifier: Apache-2.0

//go:build unix

package test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	lockstep "github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
)

// spec returns the spec of a small pair without TLS that uses the etcd of the API server.
func spec(c *cluster) v1alpha1.PairSpec {
	size := resource.MustParse("1Gi")
	return v1alpha1.PairSpec{
		Image:       v1alpha1.Image{Tag: "v1"},
		TLS:         v1alpha1.TLS{Mode: "none"},
		Coordinator: v1alpha1.Coordinator{Type: "etcd", Etcd: v1alpha1.Etcd{Endpoints: []string{c.etcd}}},
		Persistence: v1alpha1.Persistence{Size: &size, StorageClass: "grows"},
		Config: &runtime.RawExtension{Raw: []byte(`{"disk": {"low-watermark": "16MiB"}, "wal": {"segment-bytes": "16MiB"},
			"memory": {"budget": "128MiB"}}`)},
	}
}

func newPair(name string, s v1alpha1.PairSpec) *v1alpha1.LockstepPair {
	return &v1alpha1.LockstepPair{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: s}
}

func (c *cluster) pair(name string) *v1alpha1.LockstepPair {
	c.t.Helper()
	p := &v1alpha1.LockstepPair{}
	require.True(c.t, c.get(p, name))
	return p
}

// condition returns the status and the reason of a condition of the current generation.
func condition(conditions []metav1.Condition, kind string) (metav1.ConditionStatus, string) {
	if found := meta.FindStatusCondition(conditions, kind); found != nil {
		return found.Status, found.Reason
	}
	return "", ""
}

// settled reports whether a pair is in sync, and no pod has an older template.
func settled(p *v1alpha1.LockstepPair) bool {
	is := func(kind string, want metav1.ConditionStatus) bool {
		status, _ := condition(p.Status.Conditions, kind)
		return status == want
	}
	return p.Status.ObservedGeneration == p.Generation && is(v1alpha1.ConditionReady, metav1.ConditionTrue) &&
		is(v1alpha1.ConditionInSync, metav1.ConditionTrue) && is(v1alpha1.ConditionProgressing, metav1.ConditionFalse)
}

func (c *cluster) waitSettled(name string) {
	c.t.Helper()
	c.eventually("pair "+name, func() bool { return settled(c.pair(name)) })
}

func nowhere(context.Context, string) (net.Conn, error) { return nil, fmt.Errorf("no nodes") }

// The API server rejects invalid resources.
func TestValidation(t *testing.T) {
	c := newCluster(t, nowhere)
	for name, f := range map[string]func(*v1alpha1.PairSpec){
		"tag":       func(s *v1alpha1.PairSpec) { s.Image.Tag = "" },
		"tls":       func(s *v1alpha1.PairSpec) { s.TLS = v1alpha1.TLS{} },
		"secret":    func(s *v1alpha1.PairSpec) { s.TLS = v1alpha1.TLS{Mode: "secret"} },
		"endpoints": func(s *v1alpha1.PairSpec) { s.Coordinator.Etcd.Endpoints = nil },
		"listen":    func(s *v1alpha1.PairSpec) { s.Console.Listen = "everywhere" },
	} {
		s := spec(c)
		f(&s)
		require.True(t, apierrors.IsInvalid(c.kube.Create(c.ctx, newPair(name, s))), name)
	}
	long := newPair("a-name-with-more-than-40-characters-in-it", spec(c))
	require.True(t, apierrors.IsInvalid(c.kube.Create(c.ctx, long)))
	queue := &v1alpha1.LockstepQueue{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: namespace}}
	require.True(t, apierrors.IsInvalid(c.kube.Create(c.ctx, queue)))
	fleet := &v1alpha1.LockstepFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "f", Namespace: namespace},
		Spec:       v1alpha1.FleetSpec{Template: v1alpha1.PairTemplate{Spec: spec(c)}},
	}
	require.True(t, apierrors.IsInvalid(c.kube.Create(c.ctx, fleet)))
	c.create(newPair("prod", spec(c)))
	pair := c.pair("prod")
	changed := pair.DeepCopy()
	changed.Spec.Coordinator = v1alpha1.Coordinator{}
	require.True(t, apierrors.IsInvalid(c.kube.Patch(c.ctx, changed, client.MergeFrom(pair))))
}

// The objects of a pair are created once, restored after a deletion, and do not replace objects of others.
func TestObjects(t *testing.T) {
	c := newCluster(t, nowhere)
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: namespace}}
	c.create(other)
	c.create(newPair("taken", spec(c)))
	c.eventually("degraded", func() bool {
		status, reason := condition(c.pair("taken").Status.Conditions, v1alpha1.ConditionDegraded)
		return status == metav1.ConditionTrue && reason == "ObjectExists"
	})
	require.True(t, c.get(other, "taken"))
	require.Empty(t, other.Data)

	s := spec(c)
	s.ActiveService.Enabled, s.NetworkPolicy.Enabled = true, true
	s.Coordinator = v1alpha1.Coordinator{}
	c.create(newPair("prod", s))
	set, witness := &appsv1.StatefulSet{}, &appsv1.StatefulSet{}
	c.eventually("StatefulSets", func() bool { return c.get(set, "prod") && c.get(witness, "prod-witness") })
	require.Equal(t, appsv1.OnDeleteStatefulSetStrategyType, set.Spec.UpdateStrategy.Type)
	for _, name := range []string{"prod", "prod-peers", "prod-active"} {
		require.True(t, c.get(&corev1.Service{}, name), name)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "prod", Namespace: namespace}}
	require.NoError(t, c.kube.Delete(c.ctx, service))
	c.eventually("a new Service", func() bool { return c.get(&corev1.Service{}, "prod") })
	require.True(t, c.get(set, "prod"))
	before := set.ResourceVersion
	c.eventually("a status", func() bool {
		status, reason := condition(c.pair("prod").Status.Conditions, v1alpha1.ConditionReady)
		return status == metav1.ConditionFalse && reason == "NoActiveNode"
	})
	change(c, &v1alpha1.LockstepPair{}, "prod", func(p *v1alpha1.LockstepPair) {
		p.Labels = map[string]string{"team": "orders"}
	})
	require.True(t, c.get(set, "prod"))
	require.Equal(t, before, set.ResourceVersion, "a reconciliation without a change writes the StatefulSet")
}

func (k *kubelet) client(pairs ...string) *lockstep.Client {
	k.c.t.Helper()
	var addresses []string
	for _, pair := range pairs {
		for i := range 2 {
			p, err := k.port(fmt.Sprintf("%s-%d", pair, i))
			require.NoError(k.c.t, err)
			addresses = append(addresses, p.Address())
		}
	}
	cl, err := lockstep.OpenWith(k.c.ctx, lockstep.Options{Addresses: addresses})
	require.NoError(k.c.t, err)
	k.c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func (c *cluster) queueReady(name string) bool {
	q := &v1alpha1.LockstepQueue{}
	require.True(c.t, c.get(q, name))
	status, _ := condition(q.Status.Conditions, v1alpha1.ConditionReady)
	return status == metav1.ConditionTrue && q.Status.ObservedGeneration == q.Generation
}

// A pair of real nodes: queues, volumes, an upgrade in the right order, and an upgrade that fails and is corrected.
func TestPair(t *testing.T) {
	if testing.Short() {
		t.Skip("runs nodes")
	}
	k := newKubelet(t)
	c := newCluster(t, k.dial)
	k.start(c)
	c.create(newPair("prod", spec(c)))
	c.waitSettled("prod")

	t.Run("queue", func(t *testing.T) { queueOf(t, c, k) })
	t.Run("volumes", func(t *testing.T) { volumesGrow(t, c) })
	t.Run("upgrade", func(t *testing.T) { upgrade(t, c, k) })
}

func queueOf(t *testing.T, c *cluster, k *kubelet) {
	adm := admin.New(k.client("prod"))
	q := &v1alpha1.LockstepQueue{
		ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: namespace},
		Spec: v1alpha1.QueueSpec{
			Pair: "prod", Config: v1alpha1.QueueConfig{MaxDeliveries: 5}, DeletionPolicy: v1alpha1.DeleteIfEmpty,
			Subscriptions: []v1alpha1.QueueSubscription{{Name: "a"}, {Name: "eu", Filter: `properties.region == "eu"`}},
		},
	}
	c.create(q)
	c.eventually("a queue", func() bool { return c.queueReady("orders") })
	is, err := adm.GetQueue(c.ctx, "orders")
	require.NoError(t, err)
	require.Equal(t, uint32(5), is.Own.Config.MaxDeliveries)
	require.Len(t, is.Subscriptions, 2)

	change(c, q, "orders", func(q *v1alpha1.LockstepQueue) {
		q.Spec.Config = v1alpha1.QueueConfig{MaxMessages: 1000, RedeliveryMultiplier: "1.5", Overflow: "drop-oldest"}
	})
	c.eventually("an error", func() bool {
		require.True(t, c.get(q, "orders"))
		_, reason := condition(q.Status.Conditions, v1alpha1.ConditionReady)
		return reason == "Invalid"
	})
	change(c, q, "orders", func(q *v1alpha1.LockstepQueue) { q.Spec.Config.Overflow = "" })
	c.eventually("options", func() bool { return c.queueReady("orders") })
	is, err = adm.GetQueue(c.ctx, "orders")
	require.NoError(t, err)
	require.Equal(t, admin.QueueConfig{MaxMessages: 1000, RedeliveryMultiplier: 1.5}, is.Own.Config)

	renamed := q.DeepCopy()
	renamed.Spec.Name = "other"
	require.True(t, apierrors.IsInvalid(c.kube.Patch(c.ctx, renamed, client.MergeFrom(q))))

	publish(t, k.client("prod"), "orders", 1)
	require.NoError(t, c.kube.Delete(c.ctx, q))
	c.eventually("a queue that is not empty", func() bool {
		require.True(t, c.get(q, "orders"))
		_, reason := condition(q.Status.Conditions, v1alpha1.ConditionReady)
		return reason == "NotEmpty"
	})
	_, err = adm.PurgeQueue(c.ctx, "orders", "")
	require.NoError(t, err)
	c.eventually("the deletion", func() bool { return !c.get(&v1alpha1.LockstepQueue{}, "orders") })
	_, err = adm.GetQueue(c.ctx, "orders")
	require.ErrorIs(t, err, lockstep.ErrQueueNotFound)

	kept := &v1alpha1.LockstepQueue{
		ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: namespace}, Spec: v1alpha1.QueueSpec{Pair: "prod"},
	}
	c.create(kept)
	c.eventually("a queue", func() bool { return c.queueReady("kept") })
	require.NoError(t, c.kube.Delete(c.ctx, kept))
	c.eventually("the deletion", func() bool { return !c.get(&v1alpha1.LockstepQueue{}, "kept") })
	_, err = adm.GetQueue(c.ctx, "kept")
	require.NoError(t, err)
}

func publish(t *testing.T, cl *lockstep.Client, queue string, n int) {
	t.Helper()
	p, err := cl.NewProducer(t.Context(), lockstep.ProducerOptions{})
	require.NoError(t, err)
	for i := range n {
		_, err := p.Publish(t.Context(), queue, lockstep.Message{Body: fmt.Appendf(nil, "%d", i)})
		require.NoError(t, err)
	}
	require.NoError(t, p.Close())
}

func volumesGrow(t *testing.T, c *cluster) {
	size := func(name string) string {
		claim := &corev1.PersistentVolumeClaim{}
		require.True(t, c.get(claim, name))
		return claim.Spec.Resources.Requests.Storage().String()
	}
	larger := resource.MustParse("2Gi")
	pair := &v1alpha1.LockstepPair{}
	change(c, pair, "prod", func(p *v1alpha1.LockstepPair) { p.Spec.Persistence.Size = &larger })
	c.eventually("larger volumes", func() bool { return size("data-prod-0") == "2Gi" && size("data-prod-1") == "2Gi" })
	c.eventually("Resizing", func() bool { // nothing enlarges the volumes here
		_, reason := condition(c.pair("prod").Status.Conditions, v1alpha1.ConditionVolumesResized)
		return reason == "Resizing"
	})
	for _, name := range []string{"data-prod-0", "data-prod-1"} {
		claim := &corev1.PersistentVolumeClaim{}
		require.True(t, c.get(claim, name))
		base := claim.DeepCopy()
		claim.Status.Capacity = claim.Spec.Resources.Requests
		require.NoError(t, c.kube.Status().Patch(c.ctx, claim, client.MergeFrom(base)))
	}
	c.eventually("Resized", func() bool {
		status, reason := condition(c.pair("prod").Status.Conditions, v1alpha1.ConditionVolumesResized)
		return status == metav1.ConditionTrue && reason == "Resized"
	})
	smaller := resource.MustParse("1Gi")
	change(c, pair, "prod", func(p *v1alpha1.LockstepPair) { p.Spec.Persistence.Size = &smaller })
	c.eventually("Larger", func() bool {
		_, reason := condition(c.pair("prod").Status.Conditions, v1alpha1.ConditionVolumesResized)
		return reason == "Larger"
	})
	require.Equal(t, "2Gi", size("data-prod-0"))
	change(c, pair, "prod", func(p *v1alpha1.LockstepPair) { p.Spec.Persistence.Size = &larger })
	c.waitSettled("prod")
}

func upgrade(t *testing.T, c *cluster, k *kubelet) {
	publish(t, k.client("prod"), "kept", 10)
	require.Empty(t, k.stops())
	active := c.pair("prod").Status.ActiveNode
	standby := map[string]string{"prod-0": "prod-1", "prod-1": "prod-0"}[active]
	image := func(tag string) {
		change(c, &v1alpha1.LockstepPair{}, "prod", func(p *v1alpha1.LockstepPair) { p.Spec.Image.Tag = tag })
	}
	image("v2")
	c.waitSettled("prod")
	// The second node is not active when it is stopped: a switchover was made before.
	require.Equal(t, []stop{
		{standby, "ROLE_STANDBY", "lockstep:v1"}, {active, "ROLE_STANDBY", "lockstep:v1"},
	}, k.stops())
	require.Equal(t, standby, c.pair("prod").Status.ActiveNode)

	// An image that cannot start stops the upgrade after the first pod.
	image("broken")
	c.eventually("an upgrade that waits", func() bool {
		_, reason := condition(c.pair("prod").Status.Conditions, v1alpha1.ConditionProgressing)
		return reason == "NotInSync" && len(k.stops()) == 3
	})
	require.Equal(t, active, k.stops()[2].pod)
	publish(t, k.client("prod"), "kept", 1)
	image("v3")
	c.waitSettled("prod")
	require.Equal(t, []stop{{active, "", "lockstep:broken"}, {standby, "ROLE_STANDBY", "lockstep:v2"}}, k.stops()[3:])
	q, err := admin.New(k.client("prod")).GetQueue(c.ctx, "kept")
	require.NoError(t, err)
	require.Equal(t, uint64(11), q.Messages)
}
