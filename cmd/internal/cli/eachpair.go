// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// EachPair calls fn with a client for each pair of the fleet and the name of the pair, beginning with the pair in
// --addr. Without a fleet, it calls fn once, with an empty name. If the addresses of the other pairs cannot be read,
// for example without the operate right, EachPair prints a warning that only the objects of the first pair are listed.
func (env *Env) EachPair(
	ctx context.Context, objects string, fn func(ctx context.Context, pair string, c *client.Client) error,
) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		own, others := env.fleetOf(ctx, objects, c)
		if err := fn(ctx, own, c); err != nil {
			return err
		}
		for _, p := range others {
			if err := env.withOther(ctx, p, fn); err != nil {
				return fmt.Errorf("pair %s: %w", p.GetName(), err)
			}
		}
		return nil
	})
}

func (env *Env) withOther(
	ctx context.Context, p *pb.FleetPair, fn func(ctx context.Context, pair string, c *client.Client) error,
) error {
	connection, err := env.Connection()
	if err != nil {
		return err
	}
	connection.Addresses = strings.Join(p.GetAddresses(), ",")
	return env.With(ctx, connection, func(ctx context.Context, c *client.Client) error {
		return fn(ctx, p.GetName(), c)
	})
}

// fleetOf returns the name of the pair of a client in its fleet, and the other pairs. Without a fleet, the name is
// empty. If the other pairs cannot be read, it prints a warning with objects, the plural of the listed object.
func (env *Env) fleetOf(ctx context.Context, objects string, c *client.Client) (own string, others []*pb.FleetPair) {
	active, err := c.WaitActive(ctx)
	if err != nil {
		return "", nil // fn returns the error
	}
	st, err := pairstatus.Query(ctx, c, active.Address)
	if err != nil || st.GetFleet().GetFleetId() == "" {
		return "", nil
	}
	own = st.GetFleet().GetPair()
	node, err := NodeAt(c, active.Address)
	var fleet *pb.GetFleetResponse
	if err == nil {
		fleet, err = node.Fleet(ctx)
	}
	if err != nil {
		_, _ = fmt.Fprintf(env.Stderr, "WARNING: only the %s of pair %s are listed, because the other pairs are "+
			"unknown: %v\n", objects, own, err)
		return own, nil
	}
	for _, p := range fleet.GetPairs() {
		if p.GetName() != own && len(p.GetAddresses()) > 0 {
			others = append(others, p)
		}
	}
	return own, others
}
