// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// report is a status of one of the nodes.
type report struct {
	node    int
	pair    string
	term    uint64
	role    pb.Role // default: active
	site    pb.SiteRole
	lineage string
	epoch   uint64
}

// The target is the active node of the primary with the highest epoch; terms are compared only within a pair.
func TestTargetSelection(t *testing.T) {
	const (
		none    = -1
		primary = pb.SiteRole_SITE_ROLE_PRIMARY
		replica = pb.SiteRole_SITE_ROLE_REPLICA
		stopped = pb.SiteRole_SITE_ROLE_STOPPED
		standby = pb.Role_ROLE_STANDBY
		blocked = pb.Role_ROLE_BLOCKED
	)
	for name, c := range map[string]struct {
		reports []report
		want    int
	}{
		"one pair": {[]report{{node: 0, pair: "p", term: 3}, {node: 1, pair: "p", term: 4}}, 1},
		"term of a standby": {[]report{
			{node: 0, pair: "p", term: 4, role: standby}, {node: 1, pair: "p", term: 3},
		}, 1},
		"stale active": {[]report{
			{node: 0, pair: "p", term: 4}, {node: 0, pair: "p", term: 4, role: standby}, {node: 1, pair: "p", term: 3},
		}, none},
		"blocked, higher term": {[]report{{node: 0, pair: "p", term: 4, role: blocked}, {node: 1, pair: "p", term: 3}}, 0},
		"replica":              {[]report{{node: 0, pair: "p", term: 1, site: replica, lineage: "l", epoch: 1}}, none},
		"stopped":              {[]report{{node: 0, pair: "p", term: 1, site: stopped, lineage: "l", epoch: 1}}, none},
		"primary, lower term": {[]report{
			{node: 0, pair: "p", term: 9, site: replica, lineage: "l", epoch: 1},
			{node: 1, pair: "q", term: 2, site: primary, lineage: "l", epoch: 1},
		}, 1},
		"higher epoch": {[]report{
			{node: 0, pair: "p", term: 9, site: primary, lineage: "l", epoch: 1},
			{node: 1, pair: "q", term: 2, site: primary, lineage: "l", epoch: 2},
		}, 1},
		"superseded": {[]report{
			{node: 1, pair: "q", term: 2, site: primary, lineage: "l", epoch: 2},
			{node: 1, pair: "q", term: 2, role: standby, site: primary, lineage: "l", epoch: 2},
			{node: 0, pair: "p", term: 9, site: primary, lineage: "l", epoch: 1},
		}, none},
		"epoch of a replica": {[]report{
			{node: 1, pair: "q", term: 2, site: replica, lineage: "l", epoch: 3},
			{node: 0, pair: "p", term: 9, site: primary, lineage: "l", epoch: 1},
		}, none},
		"term of a replica": {[]report{
			{node: 0, pair: "p", term: 5, site: replica, lineage: "l", epoch: 1},
			{node: 0, pair: "p", term: 5, role: standby, site: replica, lineage: "l", epoch: 1},
			{node: 1, pair: "p", term: 4, site: primary, lineage: "l", epoch: 1},
		}, none},
		"terms of two pairs": {[]report{
			{node: 0, pair: "p", term: 4, site: primary, lineage: "l", epoch: 1},
			{node: 1, pair: "q", term: 9, site: primary, lineage: "l", epoch: 2},
			{node: 1, pair: "q", term: 9, site: replica, lineage: "l", epoch: 2},
			{node: 2, pair: "p", term: 3, site: primary, lineage: "l", epoch: 3}, // a stale active
		}, none},
		"without lineage": {[]report{
			{node: 0, pair: "p", term: 4, site: primary, lineage: "l", epoch: 1},
			{node: 0, pair: "p", term: 4, role: standby, site: primary, lineage: "l", epoch: 1},
			{node: 1, pair: "q", term: 9},
		}, none},
		"lineage begins": {[]report{
			{node: 0, pair: "p", term: 4},
			{node: 1, pair: "p", term: 4, role: standby, site: primary, lineage: "l", epoch: 1},
		}, 0},
		"standalone nodes": {[]report{
			{node: 0, site: primary, lineage: "l", epoch: 1},
			{node: 1, site: primary, lineage: "l", epoch: 2},
		}, 1},
		"two primaries in one epoch": {[]report{
			{node: 1, pair: "q", term: 2, site: primary, lineage: "l", epoch: 2},
			{node: 0, pair: "p", term: 9, site: primary, lineage: "l", epoch: 2},
		}, 1},
		"unrelated pairs": {[]report{{node: 1, pair: "q", term: 2}, {node: 0, pair: "p", term: 9}}, 1},
		"new pair":        {[]report{{node: 0, pair: "p", term: 9}, {node: 0, pair: "q", term: 1}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := &locator{opts: Options{FixedAddresses: true}, changed: make(chan struct{}), pairs: newPairs()}
			for range 3 {
				l.nodes = append(l.nodes, &node{locator: l})
			}
			for _, r := range c.reports {
				st := &pb.GetStatusResponse{Role: r.role, Pair: &pb.PairStatus{PairId: r.pair, Term: r.term}}
				if r.role == pb.Role_ROLE_UNSPECIFIED {
					st.Role = pb.Role_ROLE_ACTIVE
				}
				if r.lineage != "" {
					st.Site = &pb.SiteInfo{Name: r.pair, Role: r.site, Lineage: r.lineage, Epoch: r.epoch}
				}
				l.observe(l.nodes[r.node], st, 0)
			}
			got := none
			for i, n := range l.nodes {
				if l.target != nil && l.target.node == n {
					got = i
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// A promotion of the target's site replaces the target, because the sessions of the node have ended.
func TestPromotionReplacesTarget(t *testing.T) {
	l := &locator{opts: Options{FixedAddresses: true}, changed: make(chan struct{}), pairs: newPairs()}
	n := &node{locator: l}
	l.nodes = []*node{n}
	for epoch := range uint64(2) {
		before := l.target
		l.observe(n, &pb.GetStatusResponse{
			Role: pb.Role_ROLE_ACTIVE, Pair: &pb.PairStatus{PairId: "p", Term: 1},
			Site: &pb.SiteInfo{Role: pb.SiteRole_SITE_ROLE_PRIMARY, Lineage: "l", Epoch: 1 + 2*epoch},
		}, 0)
		require.NotSame(t, before, l.target)
	}
}

// Pairs and lineages without a node are removed.
func TestUnusedPairsAreRemoved(t *testing.T) {
	p, n := newPairs(), &node{role: pb.Role_ROLE_ACTIVE}
	for _, id := range []string{"a", "b", "c"} {
		n.pairID, n.site = id, &pb.SiteInfo{Lineage: id, Epoch: 1}
		p.record([]*node{n})
	}
	require.Len(t, p.terms, 1)
	require.Len(t, p.epochs, 1)
}
