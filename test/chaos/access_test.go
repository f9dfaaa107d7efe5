// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	// accessRounds is the default number of kills.
	accessRounds = 5
	// guestQueue is the queue to which the rules of TestChaosAccess grant access.
	guestQueue = "guests"
)

// Access changes survive kills of nodes in a pair with TLS, rules and tokens. After each failover, an acknowledged
// token is accepted, and a token that was revoked, or that lost its rule, is never accepted again. No message is
// lost.
func TestChaosAccess(t *testing.T) {
	t.Parallel() // mostly idle
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 5))
	p := start(t, secured(t, cluster.Options{Settings: map[string]string{
		"access.operators": "lockstep://root.test", "access.mode": "deny",
		"checkpoint.bytes": "1MiB", "checkpoint.interval": "500ms",
	}}))
	newQueue(t, p, guestQueue)
	w := work(t, p, cluster.WorkloadOptions{Seed: s, PerSecond: 200})
	d := &accessChanger{t: t, p: p}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	working.Go(func() { d.change(ctx) })
	working.Go(func() { d.publishLoop(ctx) })

	rounds := accessRounds
	if testing.Short() {
		rounds = 2
	}
	for range roundsOr(t, rounds) {
		active, standby := inSync(t, p)
		changes := d.changes()
		require.Eventually(t, func() bool { return d.changes() > changes+5 }, bound, time.Millisecond)
		since := w.History().Now()
		killed := []*cluster.Node{active}
		if rng.IntN(3) == 0 {
			killed = append(killed, standby)
		}
		for _, n := range killed {
			require.NoError(t, n.Kill())
		}
		if len(killed) == 1 {
			ackedSince(t, w, since, active)
		}
		for _, n := range killed {
			require.NoError(t, n.Start())
		}
		inSync(t, p)
		acked(t, w)
		d.compare(limited(t))
	}
	stop()
	working.Wait()
	d.compare(limited(t))
	require.Positive(t, d.accepted, "an issued token was never accepted")
	require.Positive(t, d.rejected, "no revoked token was used")
	t.Logf("%d tokens, %d revoked; tokens were accepted %d times, revoked ones were rejected %d times", len(d.grants),
		d.gone(),
		d.accepted, d.rejected)
	verify(t, p, w)
}

type grant struct {
	name, token string
	// granted: the creation was acknowledged. revoking: the revocation may have started. revoked: the revocation was
	// acknowledged.
	granted, revoking, revoked bool
	byToken                    bool // the token is revoked, not the rule
}

// accessChanger grants and revokes access, and checks the effect.
type accessChanger struct {
	t *testing.T
	p *cluster.Pair

	mu                 sync.Mutex // guards all fields below
	grants             []*grant
	done               int // acknowledged changes
	accepted, rejected int
}

func (d *accessChanger) changes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *accessChanger) gone() (n int) {
	for _, g := range d.grants {
		if g.revoked {
			n++
		}
	}
	return n
}

// until retries a call on the active node until it succeeds. It returns false if ctx is done first, or if a node
// rejects the call.
func (d *accessChanger) until(ctx context.Context, call func(context.Context, *cluster.Node) error) bool {
	for ctx.Err() == nil {
		n, err := d.p.WaitActive(ctx)
		if err == nil {
			limited, cancel := context.WithTimeout(ctx, bound)
			err = call(limited, n)
			cancel()
		}
		if err == nil {
			return true
		}
		if status.Code(err) == codes.FailedPrecondition && !notActive(err) {
			d.t.Errorf("a permitted change was rejected by node %s: %v", n.Name, err)
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return false
}

// notActive reports whether a node rejected a call only because the other node is active.
func notActive(err error) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(detail any) bool {
		_, is := detail.(*pb.NotActive)
		return is
	})
}

// change grants access to new principals, and revokes the access of every second principal.
func (d *accessChanger) change(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		g := &grant{name: fmt.Sprintf("guest-%d", i), byToken: i%4 == 0}
		g.token = admin.TokenPrefix + crand.Text() + crand.Text()
		sum := sha256.Sum256([]byte(g.token))
		rule := &pb.AccessRule{
			Principal: g.name, Queue: guestQueue, Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_PUBLISH},
		}
		ok := d.until(ctx, func(ctx context.Context, n *cluster.Node) error {
			_, err := pb.NewAccessServiceClient(n.Conn()).CreateToken(ctx, &pb.CreateTokenRequest{
				Token: &pb.AccessToken{Name: g.name, Principal: g.name, Sha256: sum[:]},
			})
			if status.Code(err) == codes.AlreadyExists { // by an attempt without a response
				return nil
			}
			return err
		}) && d.until(ctx, func(ctx context.Context, n *cluster.Node) error {
			_, err := pb.NewAccessServiceClient(n.Conn()).Grant(ctx, &pb.GrantRequest{Rule: rule})
			return err
		})
		if !ok {
			return
		}
		d.mu.Lock()
		g.granted, g.revoking = true, i%2 == 0
		d.grants = append(d.grants, g)
		d.done++
		d.mu.Unlock()
		if i%2 != 0 {
			continue
		}
		ok = d.until(ctx, func(ctx context.Context, n *cluster.Node) error {
			c := pb.NewAccessServiceClient(n.Conn())
			var err error
			if g.byToken {
				_, err = c.RevokeToken(ctx, &pb.RevokeTokenRequest{Name: g.name})
			} else {
				_, err = c.Revoke(ctx, &pb.RevokeRequest{Rule: rule})
			}
			if status.Code(err) == codes.NotFound { // done by an attempt without a response
				return nil
			}
			return err
		})
		if !ok {
			return
		}
		d.mu.Lock()
		g.revoked = true
		d.done++
		d.mu.Unlock()
	}
}

// publishLoop publishes continuously with valid and revoked tokens.
func (d *accessChanger) publishLoop(ctx context.Context) {
	for ctx.Err() == nil {
		d.mu.Lock()
		var g grant
		if len(d.grants) > 0 {
			g = *d.grants[max(0, len(d.grants)-1-rand.IntN(40))]
		}
		d.mu.Unlock()
		n, err := d.p.WaitActive(ctx)
		if err != nil || g.token == "" {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, bound)
		_, err = pb.NewQueueServiceClient(n.Conn()).Publish(
			metadata.AppendToOutgoingContext(limited, "authorization", "Bearer "+g.token),
			&pb.PublishRequest{Queue: guestQueue, Messages: []*pb.Message{{Body: []byte(g.name)}}})
		cancel()
		code := status.Code(err)
		no := code == codes.PermissionDenied || code == codes.Unauthenticated
		d.mu.Lock()
		switch {
		case err == nil && g.revoked:
			d.t.Errorf("%s published on node %s after its rights were revoked", g.name, n.Name)
		case err == nil:
			d.accepted++
		case no && !g.revoking:
			d.t.Errorf("%s was rejected by node %s although its rights were acknowledged: %v", g.name, n.Name, err)
		case no && g.revoked:
			d.rejected++
		}
		d.mu.Unlock()
	}
}

// compare checks that the active has all acknowledged access rights, and none that were revoked.
func (d *accessChanger) compare(ctx context.Context) {
	d.mu.Lock()
	var grants []grant // copied before the list is read
	for _, g := range d.grants {
		grants = append(grants, *g)
	}
	d.mu.Unlock()
	rules, tokens := map[string]bool{}, map[string]bool{}
	require.True(d.t, d.until(ctx, func(ctx context.Context, n *cluster.Node) error {
		list, err := pb.NewAccessServiceClient(n.Conn()).ListAccess(ctx, &pb.ListAccessRequest{})
		for _, r := range list.GetRules() {
			rules[r.GetPrincipal()] = true
		}
		for _, k := range list.GetTokens() {
			tokens[k.GetName()] = true
		}
		return err
	}), "no node responds")
	for _, g := range grants {
		if !g.revoking {
			require.True(d.t, rules[g.name] && tokens[g.name], "rights granted to %s are lost", g.name)
		}
		if g.revoked {
			require.False(d.t, rules[g.name] && tokens[g.name], "rights revoked from %s are granted again", g.name)
		}
	}
}
