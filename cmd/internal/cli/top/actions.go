// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// switchoverLimit is the time limit for the result of a switchover.
	switchoverLimit = 10 * time.Second
	pauseReason     = "from lockstep top"
)

type actions struct {
	want       func(query)
	switchover func() tea.Cmd
	pause      func(bool) tea.Cmd
}

type doneMsg struct {
	text string
	err  error
}

func (s *source) actions(ctx context.Context) actions {
	return actions{
		want:       s.want,
		switchover: func() tea.Cmd { return func() tea.Msg { return s.switchover(ctx) } },
		pause:      func(paused bool) tea.Cmd { return func() tea.Msg { return s.setPaused(ctx, paused) } },
	}
}

func (s *source) switchover(ctx context.Context) doneMsg {
	ctx, cancel := context.WithTimeout(ctx, 2*switchoverLimit)
	defer cancel()
	var r *pb.SwitchoverResponse
	err := s.onPair(ctx, func(ctx context.Context, c *client.Client) error {
		active, err := c.WaitActive(ctx)
		if err != nil {
			return err
		}
		n, err := cli.NodeAt(c, active.Address)
		if err != nil {
			return err
		}
		r, err = n.Switchover(ctx, switchoverLimit)
		return err
	})
	if err != nil {
		return doneMsg{err: err}
	}
	return doneMsg{text: fmt.Sprintf("%s is now active in term %d; clients were paused for %v", r.GetActiveAddress(),
		r.GetTerm(), r.GetPause().AsDuration().Round(100*time.Microsecond))}
}

// setPaused calls one node after the other until one accepts the change, because the active may be unreachable.
func (s *source) setPaused(ctx context.Context, paused bool) doneMsg {
	ctx, cancel := context.WithTimeout(ctx, switchoverLimit)
	defer cancel()
	reason := ""
	if paused {
		reason = pauseReason
	}
	err := s.onPair(ctx, func(ctx context.Context, c *client.Client) (err error) {
		for _, address := range s.addresses {
			n, nodeErr := cli.NodeAt(c, address)
			if nodeErr != nil {
				return nodeErr
			}
			if _, err = n.SetPaused(ctx, paused, reason); err == nil {
				break
			}
		}
		return err
	})
	switch {
	case err != nil:
		return doneMsg{err: err}
	case paused:
		return doneMsg{text: "automatic failover is disabled until the pair is resumed"}
	}
	return doneMsg{text: "automatic failover is enabled while the standby is in sync"}
}
