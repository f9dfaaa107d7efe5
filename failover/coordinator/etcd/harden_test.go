// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

func sampleLive(name string) failover.Live {
	return failover.Live{Node: failover.NodeInfo{ID: uuid.New(), Name: name, Address: "h:1"}, Process: "p-" + name}
}

// With three members, swaps, the watch and the lease survive a leader change and the loss of one member.
func TestLeaderChangeAndMemberLoss(t *testing.T) {
	t.Parallel()
	all := members(t, 3, nil)
	a := open(t, etcd.Options{Endpoints: endpoints(all)})
	b := open(t, etcd.Options{Endpoints: endpoints(all)})
	live := sampleLive("a")
	announce(t, a, live)
	rec := coordtest.SampleRecord("first")
	rev, err := a.Swap(t.Context(), 0, rec)
	require.NoError(t, err)
	coordtest.Await(t, b, "the liveness key", func(o failover.Observation) bool { return len(o.Live) == 1 })

	leader := func() int {
		for i, e := range all {
			if e.Server.Leader() == e.Server.MemberID() {
				return i
			}
		}
		return -1
	}
	old := -1
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.Eventually(t, func() bool { // on a slow machine, an election may be lost at that moment
		if old = leader(); old < 0 {
			return false
		}
		return all[old].Server.MoveLeader(ctx, uint64(all[old].Server.MemberID()),
			uint64(all[(old+1)%3].Server.MemberID())) == nil
	}, bound, 10*time.Millisecond)
	rec, rev = swap(t, a, rec, rev, "leader moved")
	coordtest.Await(t, b, "a change after the leader has moved",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "leader moved" })

	now := -1
	require.Eventually(t, func() bool { now = leader(); return now >= 0 && now != old }, bound, 10*time.Millisecond)
	began := time.Now()
	go all[now].kill() // the test's cleanup waits for it
	_, _ = swap(t, a, rec, rev, "leader killed")
	t.Logf("swap after the leader was killed: %v", time.Since(began).Round(time.Millisecond))
	o := coordtest.Await(t, b, "a change after the leader was killed",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "leader killed" })
	require.Len(t, o.Live, 1, "the lease outlives the leader")
	until := coordtest.Await(t, a, "the lease", func(failover.Observation) bool { return true }).LeaseUntil
	coordtest.Await(t, a, "a lease renewed by the other members",
		func(o failover.Observation) bool { return o.LeaseUntil.After(until) && o.Reachable })
}

// If no endpoint responds, each call ends with its context, and Close returns immediately.
func TestOnlyUnresponsiveEndpoints(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := etcd.Open(etcd.Options{Endpoints: []string{l.Addr().String()}})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, _, err = c.Load(ctx)
	require.ErrorIs(t, err, failover.ErrUnreachable)
	_, err = c.Swap(ctx, 0, coordtest.SampleRecord("x"))
	require.ErrorIs(t, err, failover.ErrUnknownOutcome)
	require.NoError(t, c.Close())
	require.Less(t, time.Since(began), bound)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ca, other := certs.New(t, "ours"), certs.New(t, "theirs")
	_, certFile, keyFile := ca.Issue(t, "server")
	clientCert, _, _ := ca.Issue(t, "client")
	foreign, _, _ := other.Issue(t, "foreign")
	e := members(t, 1, secure(ca.File, certFile, keyFile))[0]
	at := func(scheme string, cfg *tls.Config) etcd.Options {
		return etcd.Options{Endpoints: []string{scheme + endpoint(e)}, TLS: cfg}
	}
	for _, scheme := range []string{"", "https://"} {
		c := open(t, at(scheme, clientTLS(ca, &clientCert)))
		require.NoError(t, c.Ping(t.Context()), scheme)
		announce(t, c, sampleLive("a"))
		coordtest.Await(t, c, "the lease", func(o failover.Observation) bool {
			return !o.LeaseUntil.IsZero() && len(o.Live) > 0
		})
	}
	for name, tt := range map[string]struct {
		o    etcd.Options
		want string
	}{
		"wrong CA": {
			at("https://", clientTLS(other, &clientCert)),
			"was not issued by the CA in coordinator.etcd.tls.ca",
		},
		"no client certificate": {
			at("https://", clientTLS(ca, nil)),
			"etcd requires a client certificate: set coordinator.etcd.tls.cert",
		},
		"wrong certificate": {at("https://", clientTLS(ca, &foreign)), "coordinator.etcd.tls.cert"},
		"no TLS":            {at("", nil), "coordinator.etcd.tls"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, tt.o)
			require.Eventually(t, func() bool { // on a slow machine the first call may get no response at all
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
				defer cancel()
				err := c.Ping(ctx)
				require.Error(t, err)
				return strings.Contains(err.Error(), tt.want)
			}, bound, time.Millisecond)
			coordtest.Await(t, c, "the reason in the status", func(o failover.Observation) bool {
				return !o.Reachable &&
					strings.Contains(o.Problem, tt.want)
			})
		})
	}
}

// etcd's authentication tokens expire, and are invalidated by any change of users, without an effect on the pair.
func TestUserAndTokenExpiry(t *testing.T) {
	t.Parallel()
	e := members(t, 1, func(cfg *embed.Config) { cfg.AuthTokenTTL, cfg.BcryptCost = 1, 4 })[0]
	root := administer(t, clientv3.Config{Endpoints: []string{endpoint(e)}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	do := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	do(root.UserAdd(ctx, "root", "r"))
	do(root.UserGrantRole(ctx, "root", "root"))
	do(root.UserAdd(ctx, "pair", "secret"))
	do(root.RoleAdd(ctx, "pair"))
	do(root.RoleGrantPermission(ctx, "pair", "/p/", clientv3.GetPrefixRangeEnd("/p/"),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	do(root.UserGrantRole(ctx, "pair", "pair"))
	do(root.AuthEnable(ctx))
	admin := administer(t, clientv3.Config{Endpoints: []string{endpoint(e)}, Username: "root", Password: "r"})

	o := etcd.Options{Endpoints: []string{endpoint(e)}, Username: "pair", Password: "secret", LeaseTTL: 2 * time.Second}
	a, b := open(t, o), open(t, o)
	announce(t, a, sampleLive("a"))
	rec := coordtest.SampleRecord("first")
	rev, err := a.Swap(ctx, 0, rec)
	require.NoError(t, err)
	coordtest.Await(t, b, "the record", func(o failover.Observation) bool { return o.Record != nil && len(o.Live) == 1 })

	// Every current token becomes invalid: by its time to live, and by the change of the auth revision.
	idle := time.Now()
	require.Eventually(t, func() bool { return time.Since(idle) > 2500*time.Millisecond }, bound, 50*time.Millisecond)
	rec, rev = swap(t, a, rec, rev, "tokens expired")
	coordtest.Await(t, b, "a change after the tokens expired",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "tokens expired" })
	do(admin.UserAdd(ctx, "another", "user"))
	_, _ = swap(t, b, rec, rev, "auth changed")
	coordtest.Await(t, a, "a change after the users were changed",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "auth changed" })
	until := coordtest.Await(t, a, "the lease", func(failover.Observation) bool { return true }).LeaseUntil
	coordtest.Await(t, a, "a lease that is still renewed", func(o failover.Observation) bool {
		return o.LeaseUntil.After(until.Add(time.Second)) && o.Reachable && len(o.Live) == 1
	})

	for name, tt := range map[string]struct {
		change func(*etcd.Options)
		want   string
	}{
		"wrong password": {func(o *etcd.Options) { o.Password = "wrong" }, "rejects the user or password"},
		"no user":        {func(o *etcd.Options) { o.Username, o.Password = "", "" }, "set coordinator.etcd.username"},
		"other prefix":   {func(o *etcd.Options) { o.Prefix = "/q" }, "etcd denies access to the pair's keys"},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			tt.change(&o)
			c := open(t, o)
			failure := c.Ping(ctx)
			require.Error(t, failure)
			require.Contains(t, failure.Error(), tt.want)
			coordtest.Await(t, c, "the reason in the status",
				func(o failover.Observation) bool { return strings.Contains(o.Problem, tt.want) })
			_, err := c.Swap(ctx, 0, coordtest.SampleRecord("x"))
			require.Error(t, err)
			require.NotErrorIs(t, err, failover.ErrConflict)
		})
	}
}

// If etcd is out of space, swaps are rejected with a reason, and the write that raises the alarm has a known outcome.
// Reads, the watch and the lease continue to work. Swaps succeed again after the alarm is disarmed.
func TestOutOfSpace(t *testing.T) {
	e := members(t, 1, func(cfg *embed.Config) { cfg.QuotaBackendBytes = 2 << 20 })[0]
	admin := administer(t, clientv3.Config{Endpoints: []string{endpoint(e)}})
	c := open(t, etcd.Options{Endpoints: []string{endpoint(e)}})
	announce(t, c, sampleLive("a"))
	rec := coordtest.SampleRecord("first")
	rev, err := c.Swap(t.Context(), 0, rec)
	require.NoError(t, err)
	coordtest.Await(t, c, "the lease", func(o failover.Observation) bool { return len(o.Live) == 1 })

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last int64
	for err == nil { // etcd compares the quota with the size at its last commit, up to 100 ms ago
		var r *clientv3.PutResponse
		if r, err = admin.Put(ctx, "/other", strings.Repeat("x", 256<<10)); err == nil {
			last = r.Header.Revision
		}
	}
	next := rec.Clone()
	next.Config, next.OpID = 2, "while full"
	require.Eventually(t, func() bool { // the alarm is raised with a delay
		_, err = coordtest.Swap(ctx, c, rev, next)
		if err == nil { // the last write within the quota
			rec, rev, err = c.Load(ctx)
			require.NoError(t, err)
			next = rec.Clone()
			next.Config++
			next.OpID = fmt.Sprint("while full ", next.Config)
			return false
		}
		return true
	}, bound, 10*time.Millisecond)
	require.ErrorIs(t, err, failover.ErrRefused)
	require.NotErrorIs(t, err, failover.ErrUnknownOutcome, "the swap was not applied")
	require.Contains(t, err.Error(), "NOSPACE")
	now, at, err := c.Load(ctx)
	require.NoError(t, err)
	require.Equal(t, rec, now)
	require.Equal(t, rev, at)
	until := coordtest.Await(t, c, "the lease", func(failover.Observation) bool { return true }).LeaseUntil
	coordtest.Await(t, c, "a lease that is still renewed",
		func(o failover.Observation) bool { return o.LeaseUntil.After(until) && o.Reachable })

	_, err = admin.Compact(ctx, last, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = admin.Defragment(ctx, endpoint(e))
	require.NoError(t, err)
	_, err = admin.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	require.NoError(t, err)
	_, _ = swap(t, c, rec, rev, "after")
}

// Two pairs in one etcd are independent.
func TestTwoPairsInOneEtcd(t *testing.T) {
	s := start(t)
	for _, names := range [][2]string{{"/lockstep/orders", "/lockstep/bills"}, {"/x/a", "/x/a/b"}, {"/y/a", "/y/ab"}} {
		one := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: names[0]})
		two := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: names[1] + "/"})
		announce(t, one, sampleLive("one"))
		announce(t, two, sampleLive("two"))
		recOne, recTwo := coordtest.SampleRecord("one"), coordtest.SampleRecord("two")
		_, err := one.Swap(t.Context(), 0, recOne)
		require.NoError(t, err)
		_, err = two.Swap(t.Context(), 0, recTwo)
		require.NoError(t, err, "the pairs have separate records")
		for c, want := range map[*etcd.Coordinator]failover.Record{one: recOne, two: recTwo} {
			o := coordtest.Await(t, c, "its own record", func(o failover.Observation) bool {
				return o.Record != nil &&
					len(o.Live) > 0
			})
			require.Equal(t, want, *o.Record)
			require.Len(t, o.Live, 1)
			require.Equal(t, want.OpID, o.Live[0].Node.Name)
		}
	}
}
