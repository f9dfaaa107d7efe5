// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
	"github.com/lockstep-mq/lockstep/server/ops/site"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// sitePlane is the data plane of an active node at a replica site.
type sitePlane struct {
	*dataPlane

	t *testing.T
}

func newSitePlane(t *testing.T) *sitePlane {
	t.Helper()
	s, err := store.Open(store.Options{FS: memfs.New(), Dir: "/data", MemoryBudget: store.MinMemoryBudget})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ready := make(chan struct{})
	primary, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: s, Term: 1, Config: replication.PrimaryConfig{Config: 1, Serve: true},
		Events: func(e replication.Event) {
			if _, is := e.(replication.ActiveReady); is {
				close(ready)
			}
		},
	})
	require.NoError(t, err)
	t.Cleanup(primary.Stop)
	<-ready
	cfg := config.Default()
	n := newNode(cfg, zap.NewNop(), &Options{})
	n.store, n.settings = s, settings.New(settings.Options{Config: cfg, Store: s, Logger: n.log})
	n.site = site.New(site.Options{Name: "here", Store: s, Logger: n.log})
	p := &sitePlane{&dataPlane{node: n, siteRefusal: n.site.Refusal, primary: primary, ready: true}, t}
	t.Cleanup(func() {
		if session := n.serving.Get(); session != nil {
			session.End(apierror.ErrInvalid)
		}
	})
	p.change(txn.SiteChange{Action: txn.SiteFollow, Lineage: uuid.Max, Epoch: 1})
	return p
}

func (p *sitePlane) change(c txn.SiteChange) {
	p.t.Helper()
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) { b.Site(c) })
	require.NoError(p.t, err)
	r, err := p.primary.CommitSite(p.t.Context(), payload)
	require.NoError(p.t, err)
	require.NoError(p.t, r.Err())
}

func (p *sitePlane) promote() {
	p.t.Helper()
	p.change(txn.SiteChange{Action: txn.SitePromote, Expected: 1, Epoch: 2, Lossy: true})
}

// duringNext calls change between the next read of the role and the action of its caller.
func (p *sitePlane) duringNext(change func()) {
	p.siteRefusal = func() *apierror.NotActiveError {
		p.siteRefusal = p.node.site.Refusal
		refusal := p.node.site.Refusal()
		change()
		return refusal
	}
}

// If the role of the site changes after serveByRole has read it, serveByRole still reaches the correct state: a
// promoted site has a session, and a stopped site has none.
func TestConcurrentSiteRoles(t *testing.T) {
	p := newSitePlane(t)
	p.duringNext(func() {
		p.promote()
		p.serveByRole() // like runSite
		require.NotNil(t, p.node.serving.Get())
	})
	p.serveByRole() // like beginServing
	require.NotNil(t, p.node.serving.Get(), "session of the primary")
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) { b.PutMeta("k", nil) })
	require.NoError(t, err)
	_, err = p.primary.Commit(t.Context(), payload)
	require.NoError(t, err, "transactions of clients are accepted")

	p.duringNext(func() {
		p.change(txn.SiteChange{Action: txn.SiteStop, Expected: 2})
		p.serveByRole()
		require.Nil(t, p.node.serving.Get())
	})
	p.serveByRole()
	require.Nil(t, p.node.serving.Get(), "session of the stopped site")
	_, err = p.primary.Commit(t.Context(), payload)
	require.Error(t, err)
}
