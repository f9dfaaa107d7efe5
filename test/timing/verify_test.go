// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// compare compares the contents of both nodes. The comparison must find no difference, or be rejected.
func compare(t *testing.T, n *simpair.Node, deep bool) error {
	t.Helper()
	r, err := n.Admin().Verify(t.Context(), &pb.VerifyRequest{Deep: deep, FullSpeed: true})
	if err != nil {
		return err
	}
	require.Empty(t, r.GetDifferences())
	require.Empty(t, r.GetContentError())
	require.Len(t, r.GetNodes(), 2)
	return nil
}

// While the pair is in sync, a comparison of the nodes is never rejected, regardless of load and frequency. After a
// standby has reconnected, comparisons are rejected only until the standby is in sync.
func TestVerify(t *testing.T) {
	for _, deep := range []bool{false, true} {
		t.Run(fmt.Sprint("deep=", deep), func(t *testing.T) {
			run(t, func(t *testing.T, p *pair) {
				w, l := p.work(), p.load()
				active, standby := p.inSync()
				for range 30 {
					require.NoError(t, compare(t, active, deep))
				}
				for range 3 {
					standby.Kill()
					active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
					require.Equal(t, codes.FailedPrecondition, status.Code(compare(t, active, false)))
					standby = p.restart(standby)
					var refused, inSync time.Time
					for start := time.Now(); ; sleep(simpair.Poll) {
						require.Less(t, time.Since(start), 10*time.Second)
						began := time.Now()
						if active.Role() == pb.Role_ROLE_ACTIVE && inSync.IsZero() {
							inSync = began
						}
						began = time.Now()
						err := compare(t, active, deep)
						if err == nil {
							break
						}
						require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
						refused = began
					}
					require.True(t, inSync.IsZero() || refused.Before(inSync), "refused %v after the pair was in sync",
						refused.Sub(inSync))
				}
				l.end()
				p.verify(w)
			})
		})
	}
}

// A deep comparison is not limited to scrub.rate, which applies to the periodic scrub. It would take minutes here.
func TestDeepVerifyIgnoresScrubRate(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		p.fill()
		active, _ := p.inSync()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := active.Admin().Verify(ctx, &pb.VerifyRequest{Deep: true})
		require.NoError(t, err)
	}, func(c *config.Config) { c.Scrub.Rate = 64 << 10 })
}

// fill publishes 4 MiB, and writes checkpoints on both nodes.
func (p *pair) fill() {
	p.t.Helper()
	c := p.client()
	_, _, err := admin.New(c).CreateQueue(p.t.Context(), "full", admin.CreateQueueOptions{})
	require.NoError(p.t, err)
	for range 64 {
		_, err := c.Publish(p.t.Context(), "full", client.Message{Body: make([]byte, 64<<10)})
		require.NoError(p.t, err)
	}
	p.inSync()
	for _, n := range p.nodes {
		_, err := n.Admin().Checkpoint(p.t.Context(), &pb.CheckpointRequest{})
		require.NoError(p.t, err)
	}
}

// The standby is briefly lost while both nodes read their stores for a deep comparison. The comparison waits until
// the standby is in sync again, and succeeds.
func TestVerifyAcrossReconnect(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		p.fill()
		active, _ := p.inSync()
		var reads sync.WaitGroup
		reads.Add(len(p.disks))
		proceed := make(chan struct{})
		for _, disk := range p.disks { // the first read of page.db waits
			var once sync.Once
			disk.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.OpRead && strings.HasSuffix(op.Name, "page.db") {
					once.Do(func() {
						reads.Done()
						<-proceed
					})
				}
				return nil
			})
		}

		done := make(chan error, 1)
		go func() {
			r, err := active.Admin().Verify(t.Context(), &pb.VerifyRequest{Deep: true})
			if err == nil && r.GetContentError() != "" {
				err = errors.New(r.GetContentError())
			}
			done <- err
		}()
		reads.Wait()
		p.cut(true)
		active.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		close(proceed)
		sleep(time.Second) // until the nodes have read their stores
		p.cut(false)
		require.NoError(t, <-done)
		p.inSync()
	})
}
