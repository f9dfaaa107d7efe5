// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// maxNamed is the maximum number of queue names in a line of the table format.
const maxNamed = 3

// plannedMove is a move of a plan, as printed.
type plannedMove struct {
	From        string           `json:"from"`
	To          string           `json:"to"`
	Queues      []string         `json:"queues"`
	Bytes       uint64           `json:"bytes"`
	PublishRate uint64           `json:"publish_rate"`
	Reasons     []balance.Reason `json:"reasons"`
}

// leftGroup is a group of queues that cannot be moved, as printed.
type leftGroup struct {
	Queues []string       `json:"queues"`
	Reason balance.Reason `json:"reason"`
	Detail string         `json:"detail"`
}

func plannedMoves(moves []balance.Move) []plannedMove {
	out := []plannedMove{}
	for i := range moves {
		m := &moves[i]
		out = append(out, plannedMove{m.From, m.To, m.Queues(), m.Bytes, m.Rate, m.Reasons})
	}
	return out
}

func leftGroups(left []balance.Left) []leftGroup {
	out := []leftGroup{}
	for _, l := range left {
		out = append(out, leftGroup{l.Queues, l.Reason, l.Detail})
	}
	return out
}

func printPlanned(env *cli.Env, moves []plannedMove) error {
	if len(moves) == 0 {
		return nil
	}
	rows := make([][]any, len(moves))
	for i, m := range moves {
		var reasons []string
		for _, r := range m.Reasons {
			reasons = append(reasons, string(r))
		}
		rows[i] = []any{
			m.From, m.To, len(m.Queues), output.Bytes(m.Bytes), m.PublishRate, strings.Join(reasons, ", "), named(m.Queues),
		}
	}
	return env.Print.Table([]string{"From", "To", "Queues", ">Bytes", "Published/s", "Reason", "Names"}, rows)
}

func printLeft(env *cli.Env, left []leftGroup) error {
	if len(left) == 0 {
		return nil
	}
	rows := make([][]any, len(left))
	for i, l := range left {
		rows[i] = []any{len(l.Queues), string(l.Reason), cmp.Or(l.Detail, "-"), named(l.Queues)}
	}
	return errors.Join(env.Print.Sentence(""),
		env.Print.Table([]string{"Not moved", "Reason", "Details", "Names"}, rows))
}

func named(queues []string) string {
	if len(queues) <= maxNamed {
		return strings.Join(queues, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(queues[:maxNamed], ", "), len(queues)-maxNamed)
}

// executor executes planned moves, one at a time for each target.
type executor struct {
	env *cli.Env
	c   *client.Client
	// show is called when a move has ended.
	show func(moveInfo) error
}

// run executes moves until all have ended, ctx ends or show fails. If a move of several groups fails, run moves each
// group separately. It returns the results, and the groups that were not moved.
func (e *executor) run(ctx context.Context, moves []balance.Move) (results []moveInfo, left []balance.Left, _ error) {
	byTarget := map[string][]balance.Move{}
	for _, m := range moves {
		byTarget[m.To] = append(byTarget[m.To], m)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		info moveInfo
		left []balance.Left
	}
	ended := make(chan result)
	var targets sync.WaitGroup
	for _, queue := range byTarget {
		targets.Go(func() {
			for len(queue) > 0 && ctx.Err() == nil {
				m := queue[0]
				queue = queue[1:]
				info := e.move(ctx, &m)
				r := result{info: info}
				switch {
				case info.Phase == "done":
				case len(m.Groups) > 1: // one of the groups may prevent the move of the others
					queue = append(singles(&m), queue...)
				default:
					r.left = append(r.left, balance.Left{Queues: m.Queues(), Reason: balance.Failed, Detail: info.Error})
				}
				ended <- r
			}
		})
	}
	go func() {
		targets.Wait()
		close(ended)
	}()
	var failed error
	for r := range ended {
		results, left = append(results, r.info), append(left, r.left...)
		if failed == nil && ctx.Err() == nil {
			if failed = e.show(r.info); failed != nil {
				cancel()
			}
		}
	}
	if failed == nil {
		failed = ctx.Err()
	}
	return results, left, failed
}

// singles returns one move for each group.
func singles(m *balance.Move) (moves []balance.Move) {
	for _, g := range m.Groups {
		moves = append(moves, balance.Move{From: m.From, To: m.To, Groups: [][]string{g}, Reasons: m.Reasons})
	}
	return moves
}

// move executes one move, and waits until it has ended.
func (e *executor) move(ctx context.Context, m *balance.Move) moveInfo {
	info := moveInfo{From: m.From, To: m.To, Queues: m.Queues(), Phase: "not-moved"}
	epoch, err := e.begin(ctx, m.To, info.Queues)
	if err != nil {
		info.Error = err.Error()
		return info
	}
	info.Epoch = epoch
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		ended, err := poll(ctx, e.env, e.c, &info)
		switch {
		case err != nil && !errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil:
			info.Error = err.Error()
			return info
		case err == nil && ended:
			return info
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			info.Error = ctx.Err().Error()
			return info
		}
	}
}

// begin begins a move. It retries for at most --timeout while no active node of the target is found, or the node is
// unavailable. If the outcome of an attempt is unknown, but the attempt has begun the move, begin returns the epoch of
// that move.
func (e *executor) begin(ctx context.Context, to string, queues []string) (epoch uint64, _ error) {
	ctx, cancel := context.WithTimeout(ctx, e.env.Timeout)
	defer cancel()
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		node, err := activeOf(ctx, e.env, e.c, to)
		if err == nil {
			var begun *pb.MoveQueuesResponse
			if begun, err = node.MoveQueues(ctx, queues, ""); err == nil {
				return begun.GetEpoch(), nil
			}
			if list, failed := node.Moves(ctx); failed == nil {
				for _, m := range list.GetMoves() {
					if m.GetTo() == to && m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE && slices.Equal(m.GetQueues(), queues) {
						return m.GetEpoch(), nil
					}
				}
			}
			if !errors.Is(err, client.ErrUnavailable) {
				return 0, err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return 0, err
		}
	}
}

func (i *moveInfo) text() string {
	text := fmt.Sprintf("%s from pair %s to pair %s: ", output.Plural(len(i.Queues), "queue"), i.From, i.To)
	if i.Phase == "done" {
		return text + "moved"
	}
	return fmt.Sprintf("%snot moved (%s): %s", text, named(i.Queues), cmp.Or(i.Error, "the move was canceled"))
}
