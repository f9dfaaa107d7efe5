// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// withSchedule calls fn with a client of the pair that has a schedule: the pair in --addr, or else the other pair of
// its fleet that has it. If several other pairs have a schedule with this name, it returns a usage error.
func withSchedule(
	ctx context.Context, env *cli.Env, name string, fn func(ctx context.Context, a *admin.Client) error,
) error {
	missing := env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error { return fn(ctx, admin.New(c)) })
	if !errors.Is(missing, admin.ErrNoSchedule) {
		return missing
	}
	var pairs []string
	first := true
	err := env.EachPair(ctx, "schedules", func(ctx context.Context, pair string, c *client.Client) error {
		if first { // the pair in --addr
			first = false
			return nil
		}
		_, err := admin.New(c).Schedule(ctx, name)
		if err == nil {
			pairs = append(pairs, pair)
		} else if !errors.Is(err, admin.ErrNoSchedule) {
			return err
		}
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("find schedule %s: %w", name, err)
	case len(pairs) == 0:
		return missing
	case len(pairs) > 1:
		return cli.Usage("the pairs %s have a schedule %s; select one of them with --addr", strings.Join(pairs, " and "),
			name)
	}
	return env.EachPair(ctx, "schedules", func(ctx context.Context, pair string, c *client.Client) error {
		if pair != pairs[0] {
			return nil
		}
		return fn(ctx, admin.New(c))
	})
}
