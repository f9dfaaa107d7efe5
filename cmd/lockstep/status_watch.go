package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

// clearScreen takes everything off a terminal.
const clearScreen = "\x1b[H\x1b[2J"

// watchStatus shows the status until ctx ends: on a terminal in place, again and again and with rates, elsewhere
// whenever it is not what was printed last.
func (a *app) watchStatus(ctx context.Context, c *client.Client, interval time.Duration) error {
	if interval <= 0 {
		return usage("--interval must be more than 0")
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	screen := !a.print.JSON() && (isTerminal(a.stdout) || a.terminal != nil && a.terminal())
	last := ""
	var before *statusJSON
	var beforeAt time.Time
	for ctx.Err() == nil {
		s, now := a.askStatus(ctx, c, max(interval, 500*time.Millisecond)), time.Now()
		if ctx.Err() != nil {
			return nil
		}
		switch text := s.fingerprint(); {
		case screen:
			if err := a.drawStatus(s, now, rates(before, &s, now.Sub(beforeAt))); err != nil {
				return err
			}
		case text != last:
			last = text
			if err := a.print.Sentence("\n%s", now.Format(time.TimeOnly)); err != nil {
				return err
			}
			if err := a.printStatus(s); err != nil {
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

// drawStatus puts the status in the place of what is on the terminal, in one piece, so that it does not flicker.
func (a *app) drawStatus(s statusJSON, now time.Time, rates string) error {
	var b bytes.Buffer
	b.WriteString(clearScreen + now.Format(time.TimeOnly) + "\n")
	p, err := out.New(&b, "table")
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	before := a.print
	a.print = p
	err = a.printStatus(s)
	a.print = before
	if err != nil {
		return err
	}
	b.WriteString(rates)
	return a.print.Raw(b.Bytes())
}

// rates says what the active did since the last look; empty if that cannot be said: after a change of roles, or when
// there was none before.
func rates(before, now *statusJSON, passed time.Duration) string {
	if before == nil || passed <= 0 {
		return ""
	}
	for _, n := range now.Nodes {
		if n.Error != "" || baseRole(n.Role) != nodeActive {
			continue
		}
		for _, old := range before.Nodes {
			if old.NodeID != n.NodeID || baseRole(old.Role) != nodeActive || n.Commit < old.Commit {
				continue
			}
			per := func(d float64) string { return fmt.Sprintf("%.0f/s", d/passed.Seconds()) }
			return fmt.Sprintf("\nnode %s: %s transactions, %s messages more, %s stored\n", n.Name,
				per(float64(n.Commit-old.Commit)),
				fmt.Sprintf("%+.0f/s", (float64(n.Messages)-float64(old.Messages))/passed.Seconds()),
				out.Bytes(n.MessageBytes))
		}
	}
	return ""
}
