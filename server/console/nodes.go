// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type nodeView struct {
	Info *pb.NodeStatus
	// Status is the status reported by the node. It is nil if the node does not respond.
	Status *pb.GetStatusResponse
	Own    bool // this node serves the console
	Error  string
	State  label
	// Rates contains the rates since the previous sample. It is nil before the second sample.
	Rates *rates
}

// Name returns the name of the node, or a prefix of its UUID if it has no name.
func (n *nodeView) Name() string {
	if n.Info.GetName() != "" {
		return n.Info.GetName()
	}
	return short(n.Info.GetNodeId())
}

// nodes returns the status of all nodes of the pair, ordered by name. The result is cached in the view.
func (v *View) nodes(ctx context.Context) ([]*nodeView, error) {
	v.nodesMu.Lock()
	defer v.nodesMu.Unlock()
	if v.cachedNodes == nil {
		all, err := v.queryNodes(ctx)
		if err != nil {
			return nil, err
		}
		v.cachedNodes = all
	}
	return v.cachedNodes, nil
}

func (v *View) queryNodes(ctx context.Context) ([]*nodeView, error) {
	own, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	infos := slices.Clone(own.GetPair().GetNodes())
	if len(infos) == 0 {
		infos = []*pb.NodeStatus{own.GetNode()}
	}
	slices.SortFunc(infos, func(a, b *pb.NodeStatus) int {
		return strings.Compare(a.GetName()+a.GetNodeId(), b.GetName()+b.GetNodeId())
	})
	all := make([]*nodeView, len(infos))
	var requests sync.WaitGroup
	for i, info := range infos {
		n := &nodeView{Info: info, Own: info.GetNodeId() == own.GetNode().GetNodeId()}
		all[i] = n
		if n.Own {
			n.Status = own
			continue
		}
		requests.Go(func() {
			st, err := v.OtherStatus(ctx, info)
			if err != nil {
				n.Error = describe(err).Text
				return
			}
			n.Status = st
		})
	}
	requests.Wait()
	for _, n := range all {
		n.State = stateOf(n)
		if n.Status != nil {
			n.Rates = v.server.samples.rates(n.Info.GetNodeId(), n.Status, v.server.o.Now())
		}
	}
	return all, nil
}

func stateOf(n *nodeView) label {
	if n.Status == nil {
		return label{"not responding", "bad"}
	}
	return roleOf(n.Status.GetRole())
}

// rates contains the rates of a node, per second.
type rates struct{ Published, PublishedBytes, Delivered, Acknowledged, Transactions float64 }

type samples struct {
	mu  sync.Mutex // guards the fields below
	all map[string]*sample
}

// sample contains the counters of a node, the time at which they were read, and the rates since the previous sample.
type sample struct {
	process time.Time
	last    *pb.Activity
	at      time.Time
	rates   *rates
}

const (
	// sampleEvery is the minimum interval between two samples. Samples older than sampleOld are ignored.
	sampleEvery = 900 * time.Millisecond
	sampleOld   = 30 * time.Second
	maxSamples  = 16
)

// rates samples the counters of a node, at most once per sampleEvery, and returns its rates. It returns nil until a
// process has two samples, and if the previous sample is older than sampleOld.
func (s *samples) rates(node string, st *pb.GetStatusResponse, now time.Time) *rates {
	if st.GetActivity() == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one, process := s.all[node], st.GetStartedAt().AsTime()
	if one == nil || !one.process.Equal(process) || now.Sub(one.at) > sampleOld {
		if len(s.all) >= maxSamples {
			clear(s.all)
		}
		s.all[node] = &sample{process: process, last: st.GetActivity(), at: now}
		return nil
	}
	if now.Sub(one.at) < sampleEvery {
		return one.rates
	}
	seconds := now.Sub(one.at).Seconds()
	rate := func(of func(*pb.Activity) uint64) float64 {
		now, before := of(st.GetActivity()), of(one.last)
		if now < before {
			return 0
		}
		return float64(now-before) / seconds
	}
	one.rates = &rates{
		rate((*pb.Activity).GetPublished), rate((*pb.Activity).GetPublishedBytes), rate((*pb.Activity).GetDelivered),
		rate((*pb.Activity).GetAcknowledged), rate((*pb.Activity).GetTransactions),
	}
	one.last, one.at = st.GetActivity(), now
	return one.rates
}

// FileBytes returns the size of the page file in bytes.
func (n *nodeView) FileBytes() uint64 {
	return n.Status.GetStore().GetPages() * uint64(n.Status.GetStore().GetPageSize())
}
