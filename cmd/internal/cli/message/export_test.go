// SPDX-License-Identifier: Apache-2.0

package message

import (
	"context"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// Request publishes a request with a client of the test, and prints the reply.
func Request(ctx context.Context, env *cli.Env, c *client.Client, queue string, m client.Message) error {
	return request(ctx, env, c, queue, m, nil)
}
