// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

func printConditions(env *cli.Env, all []pairstatus.Condition) error {
	for i := range all {
		c := &all[i]
		text := strings.ToUpper(c.Severity) + " " + c.Condition
		if c.Node != "" {
			text += " on " + c.Node
		}
		text += " since " + output.LocalTime(c.Since)
		if c.Details != "" {
			text += ": " + c.Details
		}
		for _, line := range []string{c.Meaning, c.Do} {
			if line != "" {
				text += "\n  " + line
			}
		}
		if err := env.Print.Sentence("%s", text); err != nil {
			return err
		}
	}
	return nil
}
