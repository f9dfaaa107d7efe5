// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"slices"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// Comparison contains all rounds of one case.
type Comparison struct {
	Workload  string `json:"workload"` // "compare"
	Case      string `json:"case"`
	Sync      string `json:"sync"`
	SizeBytes int    `json:"size_bytes"`
	Ours      Side   `json:"ours"`
	Peers     []Side `json:"peers"`

	ours  []bench.Result
	peers map[string][]bench.Result
}

// Side is the median of one side, and the spread over all rounds. With an even number of rounds, the latencies are from
// the lower middle round.
type Side struct {
	Name    string  `json:"name"`
	Rounds  int     `json:"rounds"`
	Rate    float64 `json:"rate_per_s"`
	RateMin float64 `json:"rate_min_per_s"`
	RateMax float64 `json:"rate_max_per_s"`
	P50     float64 `json:"p50_ms,omitempty"`
	P99     float64 `json:"p99_ms,omitempty"`
	Remark  string  `json:"remark,omitempty"`
	// Ratio is the rate of Lockstep divided by the rate of this side.
	Ratio float64 `json:"ratio,omitempty"`
}

// Comparisons groups results by case, sync mode and size, in the order of their first occurrence. The zero value is
// empty.
type Comparisons struct{ list []*Comparison }

func (c *Comparisons) find(name, sync string, size int) *Comparison {
	i := slices.IndexFunc(c.list, func(x *Comparison) bool {
		return x.Case == name && x.Sync == sync &&
			x.SizeBytes == size
	})
	if i < 0 {
		c.list = append(c.list, &Comparison{
			Workload: "compare", Case: name, Sync: sync, SizeBytes: size,
			peers: map[string][]bench.Result{},
		})
		i = len(c.list) - 1
	}
	return c.list[i]
}

// Ours adds a result of Lockstep to the comparison of its Case.
func (c *Comparisons) Ours(r bench.Result) {
	x := c.find(r.Case, r.Sync, r.SizeBytes)
	x.ours = append(x.ours, r)
}

// Peer adds a result of a peer to the comparison of its Case.
func (c *Comparisons) Peer(name, sync string, r bench.Result) {
	x := c.find(r.Case, sync, r.SizeBytes)
	x.peers[name] = append(x.peers[name], r)
	if r.Case == CasePub64 { // 64 is also the maximum number in flight at the peer
		x = c.find(CasePipelined, sync, r.SizeBytes)
		x.peers[name] = append(x.peers[name], r)
	}
}

// Messages returns the number of messages in a peer's last result of the named case; 0 if unknown.
func (c *Comparisons) Messages(name, sync string, size int) int {
	for _, results := range c.find(name, sync, size).peers {
		return results[len(results)-1].Messages
	}
	return 0
}

// List returns the comparisons with medians, spreads and ratios.
func (c *Comparisons) List() []Comparison {
	out := make([]Comparison, 0, len(c.list))
	for _, x := range c.list {
		x.Ours, x.Peers = side("lockstep", x.ours), nil
		for name, results := range x.peers {
			s := side(name, results)
			if s.Rate > 0 {
				s.Ratio = x.Ours.Rate / s.Rate
			}
			x.Peers = append(x.Peers, s)
		}
		slices.SortFunc(x.Peers, func(a, b Side) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, *x)
	}
	return out
}

func side(name string, results []bench.Result) Side {
	if len(results) == 0 {
		return Side{Name: name}
	}
	m := bench.Median(results)
	rates := make([]float64, len(results))
	for i := range results {
		rates[i] = results[i].Rate
	}
	slices.Sort(rates)
	middle := (rates[(len(rates)-1)/2] + rates[len(rates)/2]) / 2
	return Side{
		Name: name, Rounds: len(results), Rate: middle, RateMin: m.RateMin, RateMax: m.RateMax, P50: m.P50,
		P99: m.P99, Remark: m.Remark(),
	}
}
