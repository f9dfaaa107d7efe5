// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math"
	"strings"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// Tag returns the tag of a queue name, like the hash tags of Redis Cluster: the text between the first `{` and the
// next `}`. It returns "" if the name has no such text.
func Tag(queue string) string {
	_, rest, found := strings.Cut(queue, "{")
	if !found {
		return ""
	}
	tag, _, found := strings.Cut(rest, "}")
	if !found {
		return ""
	}
	return tag
}

// candidate is a registered pair.
type candidate struct {
	Member
	load Load
	live bool // it has a load
}

// choose returns the pair for a new queue without a placed group. key is the placement group, or the name of the
// queue. used is the number of partitions of the same queue by pair: pairs with fewer partitions precede the others.
func choose(queue, key string, pairs []candidate, rules []Rule, used map[string]int) (string, error) {
	rule, ruled := match(rules, queue)
	best, bestScore := "", math.Inf(-1)
	for _, p := range pairs {
		if p.State != StateOpen || !p.live || ruled && !rule.permits(p.Member) {
			continue
		}
		score := score(key, p.Name, p.load.FreeBytes)
		if best != "" && used[p.Name] > used[best] {
			continue
		}
		if best == "" || used[p.Name] < used[best] || score > bestScore || score == bestScore && p.Name < best {
			best, bestScore = p.Name, score
		}
	}
	switch {
	case best != "":
		return best, nil
	case ruled:
		return "", fmt.Errorf("%w: no open pair that is running matches rule %q", ErrNoPair, rule.Pattern)
	}
	return "", fmt.Errorf("%w: no open pair is running", ErrNoPair)
}

// match returns the rule that applies to a queue: of the rules that match its name, the one with the most literal bytes
// in its pattern. Of several such rules, the one with the lowest pattern applies.
func match(rules []Rule, queue string) (best Rule, found bool) {
	for _, r := range rules {
		if !txn.MatchQueue(r.Pattern, queue) {
			continue
		}
		n, most := literals(r.Pattern), literals(best.Pattern)
		if !found || n > most || n == most && r.Pattern < best.Pattern {
			best, found = r, true
		}
	}
	return best, found
}

func literals(pattern string) int {
	return len(pattern) - strings.Count(pattern, "*") - strings.Count(pattern, "?")
}

func (r Rule) permits(m Member) bool {
	if r.Pair != "" {
		return r.Pair == m.Name
	}
	for k, v := range r.Labels {
		if got, ok := m.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// score is a weighted rendezvous hash: the pair with the highest score is chosen. Pairs are chosen in proportion to
// their weights, and a change of one weight changes only choices for or against that pair.
//
// Rendezvous hashing: D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM
// Transactions on Networking, 1998. Weights (the logarithmic method): C. Schindelhauer, G. Schomaker, "Weighted
// Distributed Hash Tables", SPAA 2005.
func score(key, pair string, weight uint64) float64 {
	u := (float64(hash(key, pair)>>12) + 0.5) / (1 << 52) // exact, and in (0, 1)
	return float64(max(weight, 1)) / -math.Log(u)
}

// hash is FNV-1a of both strings, followed by the finalizer of SplitMix64, because the high bits of FNV-1a depend
// little on the last bytes.
func hash(key, pair string) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * prime
	}
	h = (h ^ 0xff) * prime // no byte of UTF-8
	for i := range len(pair) {
		h = (h ^ uint64(pair[i])) * prime
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
