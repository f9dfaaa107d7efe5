// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/store/queue"
)

func entries(t *testing.T, messages ...proto.Message) (list []queue.AccessEntry) {
	t.Helper()
	for _, m := range messages {
		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		e := queue.AccessEntry{Value: raw}
		switch m := m.(type) {
		case *pb.AccessRule:
			e.Kind, e.Name = access.KindRule, access.RuleName(m)
		case *pb.AccessRole:
			e.Kind, e.Name = access.KindRole, m.GetName()
		case *pb.AccessToken:
			e.Kind, e.Name = access.KindToken, m.GetName()
		case *pb.AccessQuota:
			e.Kind, e.Name = access.KindQuota, m.GetQueue()
		}
		list = append(list, e)
	}
	return list
}

func rule(principal, group, queue string, rights access.Right, roles ...string) *pb.AccessRule {
	return &pb.AccessRule{
		Principal: principal, Group: group, Queue: queue, Rights: access.RightsToProto(rights), Roles: roles,
	}
}

// After two concurrent loads, the rules are those of the newest table, even if the load that has read an older table
// ends last.
func TestConcurrentLoadsKeepNewestRules(t *testing.T) {
	var rules access.Rules
	var version atomic.Uint64
	read := func() (uint64, []queue.AccessEntry) { return version.Load(), nil }
	var later sync.WaitGroup
	require.NoError(t, rules.LoadFrom(func() (uint64, []queue.AccessEntry) {
		before, entries := read()
		version.Add(1)
		var loaded atomic.Bool
		later.Go(func() {
			assert.NoError(t, rules.LoadFrom(read))
			loaded.Store(true)
		})
		for range 100_000 { // the second load blocks, or finishes before the first load
			if loaded.Load() {
				break
			}
			runtime.Gosched()
		}
		return before, entries
	}))
	later.Wait()
	require.Equal(t, version.Load(), rules.Table().Version())
}

// May allows a request if a rule or role grants the right on the queue to the principal or to one of its groups.
// Operators have all rights except Peer.
func TestMayEvaluatesRules(t *testing.T) {
	var rules access.Rules
	rules.Configure(access.Setting{Operators: []string{"root", "boot-*"}})
	require.NoError(t, rules.Load(7, entries(
		t,
		rule("alice", "", "orders.*", access.Publish|access.Browse),
		rule("alice", "", "", access.Audit),
		rule("svc-*", "", "team-a/*", access.Consume),
		rule("", "ops", "", 0, "operator"),
		rule("", "dev-*", "dev/*", 0, "all-queues", "operator"),
		rule("bob", "", "", 0, "all-queues"),
		rule("anonymous", "", "public", access.Publish),
		&pb.AccessRole{Name: "operator", Rights: access.RightsToProto(access.Operate | access.Audit)},
		&pb.AccessRole{Name: "all-queues", Rights: access.RightsToProto(access.QueueRights)},
	)))
	require.False(t, rules.Open())
	id := func(principal string, groups ...string) *access.Identity {
		return &access.Identity{Principal: principal, Groups: groups}
	}
	for _, tt := range []struct {
		id    *access.Identity
		right access.Right
		queue string
		want  bool
	}{
		{id("alice"), access.Publish, "orders.eu", true},
		{id("alice"), access.Publish | access.Browse, "orders.eu", true},
		{id("alice"), access.Publish | access.Consume, "orders.eu", false},
		{id("alice"), access.Consume, "orders.eu", false},
		{id("alice"), access.Publish, "orders", false},
		{id("alice"), access.Publish, "", true},
		{id("alice"), access.Manage, "", false},
		{id("alice"), access.Audit, "", true},
		{id("alice"), access.Operate, "", false},
		{id("Alice"), access.Publish, "orders.eu", false},
		{id("svc-7"), access.Consume, "team-a/x/y", true},
		{id("svc-7"), access.Consume, "team-b/x", false},
		{id("carol", "x", "ops"), access.Operate, "", true},
		{id("carol", "x", "ops"), access.Publish, "orders.eu", false},
		{id("carol", "oops"), access.Operate, "", false},
		{id("ops"), access.Operate, "", false},
		{id("dan", "dev-7"), access.Manage, "dev/q", true},
		{id("dan", "dev-7"), access.Manage, "orders", false},
		{id("dan", "dev-7"), access.Audit, "", true},
		{id("bob"), access.Publish, "orders.eu", false}, // the queue rights of a role require a queue
		{id("root"), access.Manage, "anything", true},
		{id("boot-1"), access.Operate, "", true},
		{id("boot-1"), access.Peer, "", false},
		{id("anonymous"), access.Publish, "public", true},
		{id("anonymous"), access.Publish, "orders.eu", false},
		{&access.Identity{Principal: "b", Peer: true}, access.Peer, "", true},
		{&access.Identity{Principal: "b", Peer: true}, access.Operate, "", true},
		{&access.Identity{Principal: "b", Peer: true}, access.Publish, "orders.eu", false},
		{&access.Identity{Principal: "b"}, access.Operate, "", false},
		{id(`"dan"false"dev-7"`), access.Manage, "dev/q", false},
	} {
		for range 2 { // the second time, from the cache
			err := rules.May(tt.id, tt.right, tt.queue)
			if tt.want {
				require.NoError(t, err, "%+v", tt)
			} else {
				require.ErrorIs(t, err, access.ErrDenied, "%+v", tt)
			}
		}
	}
	require.NoError(t, rules.HasAnyRight(id("alice")))
	require.NoError(t, rules.HasAnyRight(id("root")))
	require.ErrorIs(t, rules.HasAnyRight(id("unknown")), access.ErrDenied)
	require.NoError(t, rules.MayAny(id("alice"), access.QueueRights, "orders.eu"))
	require.ErrorIs(t, rules.MayAny(id("alice"), access.QueueRights, "orders"), access.ErrDenied)

	var denied *access.DeniedError
	require.ErrorAs(t, rules.May(id("dan", "dev-7"), access.Consume, "orders.eu"), &denied)
	require.Equal(t, access.DeniedError{
		Principal: "dan", Groups: []string{"dev-7"}, Right: access.Consume, Queue: "orders.eu",
	}, *denied)
	require.ErrorIs(t, rules.May(id("anonymous"), access.Operate, ""), access.ErrDenied)
}

func TestGlobDoesNotMatchAnonymous(t *testing.T) {
	var rules access.Rules
	rules.Configure(access.Setting{Operators: []string{"*"}})
	require.NoError(
		t,
		rules.Load(1, entries(t, rule("*", "", "*", access.Publish), rule("anon*", "", "", access.Audit))),
	)
	anonymous := access.FromContext(t.Context())
	require.ErrorIs(t, rules.HasAnyRight(anonymous), access.ErrDenied)
	require.ErrorIs(t, rules.May(anonymous, access.Publish, "q"), access.ErrDenied)
	require.NoError(t, rules.May(&access.Identity{Principal: "x"}, access.Operate, ""))
}

// Before the first rule, clients have all rights except Peer, unless the access mode is deny. Roles and quotas do
// not count as rules.
func TestWithoutRules(t *testing.T) {
	var none *access.Rules
	anonymous := access.FromContext(t.Context())
	for name, rules := range map[string]*access.Rules{"nil": none, "zero": new(access.Rules)} {
		require.True(t, rules.Open(), name)
		require.NoError(t, rules.Check(t.Context(), access.Operate, ""), name)
		require.NoError(t, rules.CheckAny(t.Context(), access.QueueRights, "q"), name)
		require.NoError(t, rules.HasAnyRight(anonymous), name)
		require.ErrorIs(t, rules.Check(t.Context(), access.Peer, ""), access.ErrDenied, name)
		require.Zero(t, rules.Generation())
		require.Zero(t, rules.Table().Version())
		require.Empty(t, rules.Table().Quotas())
	}
	var rules access.Rules
	require.NoError(t, rules.Load(3, entries(t, &pb.AccessRole{Name: "r"}, &pb.AccessQuota{Queue: "*", Bytes: 1})))
	require.True(t, rules.Open(), "roles and quotas are not rules")
	changed, before := rules.Changed(), rules.Generation()
	rules.Configure(access.Setting{Deny: true, Operators: []string{"root"}})
	require.False(t, rules.Open())
	require.NotEqual(t, before, rules.Generation())
	select {
	case <-changed:
	default:
		t.Fatal("the change was not reported")
	}
	require.ErrorIs(t, rules.HasAnyRight(anonymous), access.ErrDenied)
	require.NoError(t, rules.May(&access.Identity{Principal: "root"}, access.Operate, ""))
	require.Len(t, rules.Table().Quotas(), 1)
	zero := new(access.Rules)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if zero.Check(t.Context(), access.Publish, "q") != nil {
			t.Fatal("access is denied without rules")
		}
	}))
}

// Tokens are found by their SHA-256. Entries of a newer release grant no rights.
func TestTokens(t *testing.T) {
	sum := sha256.Sum256([]byte("lsk_x"))
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	list := entries(t, &pb.AccessToken{
		Name: "ci", Principal: "ci-bot", Groups: []string{"g"}, Sha256: sum[:], ExpiresAt: timestamppb.New(at),
	}, &pb.AccessToken{Name: "short", Principal: "root", Sha256: []byte{1}}, rule("ci-bot", "", "*", access.Publish))
	list = append(
		list,
		queue.AccessEntry{Kind: 'Z', Name: "x"},
		queue.AccessEntry{Kind: access.KindRule, Name: "y", Value: []byte{0xff}},
	)
	var rules access.Rules
	err := rules.Load(1, list)
	require.Error(t, err)
	require.Contains(t, err.Error(), "newer release")
	require.Contains(t, err.Error(), `r "y"`)
	principal, groups, expiry, ok := rules.Token(sum)
	require.True(t, ok)
	require.Equal(t, "ci-bot", principal)
	require.Equal(t, []string{"g"}, groups)
	require.Equal(t, at, expiry)
	_, _, _, ok = rules.Token(sha256.Sum256([]byte("lsk_y")))
	require.False(t, ok)
	require.NoError(t, rules.May(&access.Identity{Principal: "ci-bot"}, access.Publish, "q"))
	require.False(t, rules.IsPeerSecret(nil), "no secret is configured")
	require.NoError(
		t,
		rules.Load(2, []queue.AccessEntry{{Kind: access.KindPeer, Name: access.PeerName, Value: []byte("s")}}),
	)
	require.True(t, rules.IsPeerSecret([]byte("s")))
	require.False(t, rules.IsPeerSecret([]byte("t")))
}

func TestIdentityCacheIsBounded(t *testing.T) {
	var rules access.Rules
	require.NoError(t, rules.Load(1, entries(t, rule("p-*", "", "q-*", access.Publish))))
	for i := range 30_000 {
		id := &access.Identity{Principal: fmt.Sprintf("p-%d", i)}
		require.NoError(t, rules.May(id, access.Publish, "q-1"))
	}
	id := &access.Identity{Principal: "p-x"}
	for i := range 3000 {
		require.NoError(t, rules.May(id, access.Publish, fmt.Sprintf("q-%d", i)))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if rules.May(id, access.Publish, "q-2999") != nil {
			t.Fatal("denied")
		}
	}), "a cached decision allocates no memory")
}
