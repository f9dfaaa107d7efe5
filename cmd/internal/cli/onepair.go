// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// pairTimeout limits the wait for nodes that do not respond.
const pairTimeout = 2 * time.Second

// onePair returns a usage error if --addr contains nodes of several pairs: of two sites, or of a fleet.
func (env *Env) onePair(ctx context.Context, c *client.Client) error {
	addresses, err := env.Addresses()
	if err != nil || len(addresses) < 2 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, min(env.Timeout, pairTimeout))
	defer cancel()
	answers := make(chan pairstatus.Answer, len(addresses))
	for _, address := range addresses {
		go func() {
			st, err := pairstatus.Query(ctx, c, address)
			answers <- pairstatus.Answer{Address: address, Response: st, Err: err}
		}()
	}
	found := pairsOf{addresses: make(map[string][]string)}
	for range addresses {
		a := <-answers
		if a.Err != nil {
			continue
		}
		if a.Response.GetSite() == nil && a.Response.GetFleet() == nil {
			return nil // a pair without another site and without a fleet
		}
		found.add(a)
	}
	return found.check(addresses)
}

// pairsOf contains the pairs of the nodes that responded.
type pairsOf struct {
	addresses map[string][]string // addresses of nodes, by name of the site or pair, and pair ID
	known     []string            // addresses of all these nodes
	remote    []string            // addresses of other sites, as reported
}

func (s *pairsOf) add(a pairstatus.Answer) {
	key := "site " + a.Response.GetSite().GetName()
	if a.Response.GetSite() == nil {
		key = "pair " + a.Response.GetFleet().GetPair()
	}
	key += separator + a.Response.GetPair().GetPairId()
	s.addresses[key] = append(s.addresses[key], a.Address)
	s.known = append(s.known, a.Address)
	s.remote = append(s.remote, a.Response.GetSite().GetRemoteAddresses()...)
}

// separator is between the name and the pair ID in a key. The pair ID is needed, because both sites may have the same
// name.
const separator = "\x00"

// check returns a usage error if the given addresses belong to several pairs.
func (s *pairsOf) check(given []string) error {
	for _, address := range given {
		if slices.Contains(s.remote, address) && !slices.Contains(s.known, address) {
			s.addresses["the other site"] = append(s.addresses["the other site"], address)
		}
	}
	if len(s.addresses) < 2 {
		return nil
	}
	var text []string
	for _, key := range slices.Sorted(maps.Keys(s.addresses)) {
		name, _, _ := strings.Cut(key, separator)
		slices.Sort(s.addresses[key])
		text = append(text, name+" ("+strings.Join(s.addresses[key], ", ")+")")
	}
	return Usage("--addr contains nodes of several pairs: %s; this command requires the addresses of one pair",
		strings.Join(text, " and "))
}
