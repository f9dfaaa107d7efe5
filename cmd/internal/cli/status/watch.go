// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/store/units"
)

const clearScreen = "\x1b[H\x1b[2J"

// watchStatus displays the status until ctx ends. On a terminal, it redraws the status in place, with rates. Otherwise,
// it prints the status after each change.
func watchStatus(ctx context.Context, env *cli.Env, c *client.Client, interval time.Duration) error {
	if interval <= 0 {
		return cli.Usage("--interval must be positive")
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	screen := !env.Print.JSON() && (output.IsTerminal(env.Stdout) || env.Terminal != nil && env.Terminal())
	last := ""
	var before *pairstatus.Status
	var beforeAt time.Time
	for ctx.Err() == nil {
		s, now := env.QueryNodes(ctx, c, max(interval, 500*time.Millisecond)), time.Now()
		if ctx.Err() != nil {
			return nil
		}
		switch text := s.Fingerprint(); {
		case screen:
			if err := drawStatus(env, s, now, rates(before, &s, now.Sub(beforeAt))); err != nil {
				return err
			}
		case text != last:
			last = text
			if err := env.Print.Sentence("\n%s", now.Format(time.TimeOnly)); err != nil {
				return err
			}
			if err := printStatus(env, s); err != nil {
				return err
			}
		}
		before, beforeAt = &s, now
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// drawStatus draws the status with a single write, to avoid flicker.
func drawStatus(env *cli.Env, s pairstatus.Status, now time.Time, rates string) error {
	var b bytes.Buffer
	b.WriteString(clearScreen + now.Format(time.TimeOnly) + "\n")
	p, err := output.New(&b, "table")
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	before := env.Print
	env.Print = p
	err = printStatus(env, s)
	env.Print = before
	if err != nil {
		return err
	}
	b.WriteString(rates)
	return env.Print.Raw(b.Bytes())
}

// rates returns the rates since the previous poll; empty for the first poll and after a role change.
func rates(before, now *pairstatus.Status, passed time.Duration) string {
	if before == nil || passed <= 0 {
		return ""
	}
	for _, n := range now.Nodes {
		if n.Error != "" || pairstatus.BaseRole(n.Role) != pairstatus.Active {
			continue
		}
		for _, old := range before.Nodes {
			if old.NodeID != n.NodeID || pairstatus.BaseRole(old.Role) != pairstatus.Active || n.Commit < old.Commit {
				continue
			}
			per := func(d float64) string { return units.Rate(d/passed.Seconds()) + "/s" }
			return fmt.Sprintf("\nnode %s: %s transactions, %s message growth, %s stored\n", n.Name,
				per(float64(n.Commit-old.Commit)),
				per(float64(n.Messages)-float64(old.Messages)),
				output.Bytes(n.MessageBytes))
		}
	}
	return ""
}
