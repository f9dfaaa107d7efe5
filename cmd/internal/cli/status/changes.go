// SPDX-License-Identifier: Apache-2.0

package status

import (
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// printChanges prints forced operations that are not settled, and the time of an automatic failback.
func printChanges(env *cli.Env, s pairstatus.Status) error {
	if f := s.Pair.Forced; f != nil && !f.Settled {
		if err := env.Print.Sentence("FORCED: node %s was made active %s", s.NodeName(f.NodeID), f); err != nil {
			return err
		}
	}
	if s.Pair.FailbackAt.IsZero() {
		return nil
	}
	left := max(time.Until(s.Pair.FailbackAt), 0).Round(time.Second)
	return env.Print.Sentence("failback to the preferred node in %s", left)
}
