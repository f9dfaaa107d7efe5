// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
)

// QueryPair is QueryAll for the nodes of one pair: those at the addresses, and the others in its cluster record.
func QueryPair(ctx context.Context, c *client.Client, addrs []string, timeout time.Duration) Status {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answers := queryAnswers(ctx, c, addrs)
	var more []string
	for _, a := range answers {
		for _, n := range a.Response.GetPair().GetNodes() {
			if address := n.GetAddress(); address != "" && !slices.Contains(addrs, address) && !slices.Contains(more, address) {
				more = append(more, address)
			}
		}
	}
	return Combine(append(answers, queryAnswers(ctx, c, more)...))
}

// queryAnswers requests the status of nodes concurrently.
func queryAnswers(ctx context.Context, c *client.Client, addrs []string) []Answer {
	answers := make([]Answer, len(addrs))
	var queries sync.WaitGroup
	for i, address := range addrs {
		queries.Go(func() {
			answers[i].Address = address
			answers[i].Response, answers[i].Err = Query(ctx, c, address)
		})
	}
	queries.Wait()
	return answers
}

// Addresses returns the addresses of all nodes.
func (s Status) Addresses() []string {
	addresses := make([]string, len(s.Nodes))
	for i := range s.Nodes {
		addresses[i] = s.Nodes[i].Address
	}
	return addresses
}
