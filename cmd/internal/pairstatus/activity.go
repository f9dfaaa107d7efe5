// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"math"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func newActivity(a *pb.Activity) *Activity {
	if a == nil {
		return nil
	}
	j := &Activity{
		Published: a.GetPublished(), PublishedBytes: a.GetPublishedBytes(), Delivered: a.GetDelivered(),
		Acknowledged: a.GetAcknowledged(), Transactions: a.GetTransactions(), Consumers: a.GetConsumers(),
		Connections: a.GetConnections(), MemoryBytes: a.GetMemoryBytes(), MemoryBudgetBytes: a.GetMemoryBudgetBytes(),
		Commits: []Latency{},
	}
	for _, b := range a.GetCommits() {
		j.Commits = append(j.Commits, Latency{UpToMS: output.Milliseconds(b.GetUpTo().AsDuration()), Count: b.GetCount()})
	}
	return j
}

// Rates are the rates of the active node, between two responses of the same process.
type Rates struct {
	Published    float64 `json:"published_per_second"`
	Delivered    float64 `json:"delivered_per_second"`
	Acknowledged float64 `json:"acknowledged_per_second"`
	Transactions float64 `json:"transactions_per_second"`
	// CommitP50MS and CommitP99MS are percentiles of the latency of batch commits on all required nodes, in
	// milliseconds; 0 without batches.
	CommitP50MS float64 `json:"commit_p50_ms"`
	CommitP99MS float64 `json:"commit_p99_ms"`
}

// RatesBetween returns the rates of the active node between two statuses. It returns nil if no node is active, or if
// before contains no earlier response of the same process.
func RatesBetween(before, now *Status) *Rates {
	if before == nil || now == nil {
		return nil
	}
	for i := range now.Nodes {
		n := &now.Nodes[i]
		if n.Error != "" || BaseRole(n.Role) != Active || n.Activity == nil {
			continue
		}
		for k := range before.Nodes {
			old := &before.Nodes[k]
			passed := n.now.Sub(old.now).Seconds()
			if old.NodeID != n.NodeID || old.Activity == nil || !old.StartedAt.Equal(n.StartedAt) || passed <= 0 {
				continue
			}
			return n.Activity.since(old.Activity, passed)
		}
	}
	return nil
}

// since returns the rates between the given earlier activity and a. seconds is the time between the two.
func (a *Activity) since(before *Activity, seconds float64) *Rates {
	per := func(now, then uint64) float64 {
		if now < then {
			return 0
		}
		return float64(now-then) / seconds
	}
	r := &Rates{
		Published: per(a.Published, before.Published), Delivered: per(a.Delivered, before.Delivered),
		Acknowledged: per(a.Acknowledged, before.Acknowledged), Transactions: per(a.Transactions, before.Transactions),
	}
	then := make(map[float64]uint64, len(before.Commits))
	for _, b := range before.Commits {
		then[b.UpToMS] = b.Count
	}
	var passed []Latency
	for _, b := range a.Commits {
		if n := b.Count - then[b.UpToMS]; n > 0 && b.Count >= then[b.UpToMS] {
			passed = append(passed, Latency{UpToMS: b.UpToMS, Count: n})
		}
	}
	r.CommitP50MS, r.CommitP99MS = Percentile(passed, 0.5), Percentile(passed, 0.99)
	return r
}

// Percentile returns the upper bound, in milliseconds, of the bucket that contains the percentile. share is the
// percentile as a fraction, 0 to 1. Percentile returns 0 if the buckets are empty.
func Percentile(buckets []Latency, share float64) float64 {
	all := uint64(0)
	for _, b := range buckets {
		all += b.Count
	}
	wanted := uint64(math.Ceil(float64(all) * share))
	for _, b := range buckets {
		if b.Count >= wanted {
			return b.UpToMS
		}
		wanted -= b.Count
	}
	return 0
}

// AnsweredAt returns the time of the response by the clock of the node; the Unix epoch if the node does not report it,
// and zero if it did not respond.
func (n *Node) AnsweredAt() time.Time { return n.now }
