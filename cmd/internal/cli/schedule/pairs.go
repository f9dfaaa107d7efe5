// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// withSchedule calls fn, which changes or reads one schedule. If several pairs of a fleet have a schedule with this
// name, but the pair in --addr has none, it returns a usage error.
func withSchedule(ctx context.Context, env *cli.Env, fn func(ctx context.Context, a *admin.Client) error) error {
	err := env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error { return fn(ctx, admin.New(c)) })
	if errors.Is(err, admin.ErrSeveralSchedules) {
		return cli.Usage("%v; select one of them with --addr", err)
	}
	return err
}
