// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const (
	// movePoll is the interval at which the phase of a move is read.
	movePoll    = 5 * time.Millisecond
	moveBound   = 10 * time.Minute
	fillWindow  = 1000
	pairSetting = "fleet.pair"
)

// MovePairs returns the names of the two pairs of the fleet. The first one is that of the started nodes.
func MovePairs() [2]string { return [2]string{"pair-1", "pair-2"} }

// MoveOptions configures the queue that is moved, and the load.
type MoveOptions struct {
	// Messages is the number of messages of SizeBytes in the queue before the first move.
	Messages, SizeBytes int
	// PerSecond is the total number of messages per second that publishers send to the queue. Each publisher waits for its
	// acknowledgements. PublishBytes is the size of these messages.
	PerSecond, Publishers, PublishBytes int
	// DedupWindow, if not 0, is the dedup window of the queue. The messages that fill the queue then have message IDs.
	DedupWindow time.Duration
	// Quiet is the measuring time before each move.
	Quiet  time.Duration
	Rounds int
}

// MoveResult is the result of one move. Latencies are in milliseconds; MB are 10^6 bytes.
type MoveResult struct {
	Workload   string `json:"workload"`
	Phase      string `json:"phase"`
	Sync       string `json:"sync"`
	Round      int    `json:"round"`
	SizeBytes  int    `json:"size_bytes"`
	Messages   int    `json:"messages"`
	Publishers int    `json:"publishers"`
	PerSecond  int    `json:"per_second"`
	// Quiet contains the latencies before the move, Copy those until the fence.
	Quiet    Latencies `json:"quiet"`
	Copy     Latencies `json:"copy"`
	P99Ratio float64   `json:"p99_ratio"`
	// Pause is the longest time of a publish from the fence on, without the delay by previous ones. Fenced is the time
	// from the fence to the take.
	Pause  float64 `json:"pause_ms"`
	Fenced float64 `json:"fenced_ms"`
	// MB is the size of the copied messages, including their headers. Seconds is the time until the fence.
	MB      float64 `json:"mb"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"mb_per_s"`
	Passes  uint32  `json:"passes"`
	// Median is set for the round with the median Pause. The following fields cover all rounds.
	Median       bool    `json:"median,omitempty"`
	PauseMax     float64 `json:"pause_ms_max,omitempty"`
	FencedMedian float64 `json:"fenced_ms_median,omitempty"`
	FencedMax    float64 `json:"fenced_ms_max,omitempty"`
	RateMedian   float64 `json:"mb_per_s_median,omitempty"`
	RatioMedian  float64 `json:"p99_ratio_median,omitempty"`
}

// MedianMove returns the round with the median Pause; for an even number of rounds, the one with the longer of the two
// middle pauses. rounds must not be empty.
func MedianMove(rounds []MoveResult) MoveResult {
	median := func(of func(*MoveResult) float64) float64 {
		values := make([]float64, 0, len(rounds))
		for i := range rounds {
			values = append(values, of(&rounds[i]))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b MoveResult) int { return cmp.Compare(a.Pause, b.Pause) })
	m := sorted[len(sorted)/2]
	m.Median, m.PauseMax = true, sorted[len(sorted)-1].Pause
	m.FencedMedian = median(func(r *MoveResult) float64 { return r.Fenced })
	m.RateMedian = median(func(r *MoveResult) float64 { return r.Rate })
	m.RatioMedian = median(func(r *MoveResult) float64 { return r.P99Ratio })
	for i := range rounds {
		m.FencedMax = max(m.FencedMax, rounds[i].Fenced)
	}
	return m
}

type moving struct {
	MoveOptions
	t     bench.Target
	pairs [2]*harness.Pair
	// clients are connected to one pair each. That of the first pair also publishes.
	clients [2]*client.Client
	load    *steadyLoad
}

// Move starts a second pair with the given settings, in which it sets the name of the pair and the prefix of its keys.
// It fills a queue, and moves it to the other pair once per round, while publishers send messages to it at a constant
// rate.
func Move(
	ctx context.Context, t bench.Target, settings map[string]string, o MoveOptions, report func(MoveResult) error,
) (err error) {
	names := MovePairs()
	settings[pairSetting], settings["coordinator.etcd.prefix"] = names[1], "/lockstep/"+names[1]
	second, err := harness.Start(ctx, harness.Options{
		Dir: filepath.Join(t.Dir, names[1]), EtcdAddress: t.Pair.EtcdAddress(), Settings: settings,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, second.Close()) }()
	m := &moving{MoveOptions: o, t: t, pairs: [2]*harness.Pair{t.Pair, second}}
	if err := waitMembers(ctx, m.pairs[:]...); err != nil {
		return err
	}
	other, err := client.OpenWith(ctx, client.Options{Addresses: second.Addresses()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Close()) }()
	m.clients = [2]*client.Client{t.Client, other}
	queue := bench.QueueNames(1)[0]
	active, err := m.active(ctx, 0)
	if err != nil {
		return err
	}
	if err := active.PutPlacementRule(ctx, &pb.PlacementRule{Pattern: "*", Pair: names[0]}); err != nil {
		return err
	}
	_, _, err = admin.New(t.Client).CreateQueue(ctx, queue, admin.CreateQueueOptions{
		Config: admin.QueueConfig{DedupWindow: o.DedupWindow},
	})
	if err != nil {
		return err
	}
	if err := m.fill(ctx, queue); err != nil {
		return err
	}
	return publishSteadily(ctx, t, steady{
		queue: queue, sizeBytes: o.PublishBytes, perSecond: o.PerSecond, publishers: o.Publishers,
	}, func(ctx context.Context, p *steadyLoad) error {
		m.load = p
		for round := range o.Rounds {
			r, err := m.measure(ctx, queue, (round+1)%len(names))
			if err != nil {
				return fmt.Errorf("move %d: %w", round+1, err)
			}
			r.Round = round + 1
			if err := report(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// waitMembers waits until all pairs are in sync, and members of the fleet.
func waitMembers(ctx context.Context, pairs ...*harness.Pair) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, p := range pairs {
		if err := p.WaitReady(ctx, nil); err != nil {
			return err
		}
		err := p.Wait(ctx, "membership of the fleet", func(all []*pb.GetStatusResponse) bool {
			return !slices.ContainsFunc(all, func(st *pb.GetStatusResponse) bool {
				f := st.GetFleet()
				return f.GetFleetId() == "" || !f.GetDirectoryCurrent() || f.GetProblem() != ""
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *moving) active(ctx context.Context, pair int) (*admin.Node, error) {
	n, err := m.pairs[pair].WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	return admin.New(m.clients[pair]).Node(n.Address)
}

// fill fills the queue, and writes checkpoints.
func (m *moving) fill(ctx context.Context, queue string) error {
	if m.Messages > 0 {
		_, err := bench.PublishNew(ctx, m.t.Client, []string{queue}, bench.PublishOptions{
			SizeBytes: m.SizeBytes, Messages: m.Messages, Producers: 2, Window: fillWindow, Queues: 1,
			MessageIDs: m.DedupWindow > 0,
		})
		if err != nil {
			return err
		}
	}
	return checkpoint(ctx, m.t.Client, m.pairs[0])
}

// checkpoint writes a checkpoint on each node of the pairs.
func checkpoint(ctx context.Context, c *client.Client, pairs ...*harness.Pair) error {
	for _, p := range pairs {
		for _, n := range p.Nodes {
			node, err := admin.New(c).Node(n.Address)
			if err != nil {
				return err
			}
			if _, err := node.Checkpoint(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *moving) measure(ctx context.Context, queue string, to int) (MoveResult, error) {
	r := MoveResult{
		Workload: "move", Phase: "to " + MovePairs()[to], Sync: m.t.Sync, SizeBytes: m.SizeBytes, Messages: m.Messages,
		Publishers: m.Publishers, PerSecond: m.PerSecond,
	}
	ctx, cancel := context.WithTimeout(ctx, moveBound)
	defer cancel()
	active, err := m.active(ctx, to)
	if err != nil {
		return r, err
	}
	if err := elapse(ctx, m.Quiet/2); err != nil { // the publishers follow the last move
		return r, err
	}
	m.load.next()
	if err := elapse(ctx, m.Quiet); err != nil {
		return r, err
	}
	r.Quiet = m.load.next()
	begin := time.Now()
	move, err := active.MoveQueues(ctx, []string{queue}, "")
	if err != nil {
		return r, err
	}
	_, err = m.await(ctx, active, move.GetEpoch(), pb.MovePhase_MOVE_PHASE_FENCED)
	if err != nil {
		return r, err
	}
	r.Seconds, r.Copy = time.Since(begin).Seconds(), m.load.next()
	ended, err := m.await(ctx, active, move.GetEpoch(), pb.MovePhase_MOVE_PHASE_DONE)
	if err != nil {
		return r, err
	}
	if err := elapse(ctx, m.Quiet/2); err != nil { // messages that waited are acknowledged
		return r, err
	}
	r.Pause = m.load.next().Call
	r.Fenced = float64(ended.GetPause().AsDuration().Microseconds()) / 1000
	r.MB, r.Passes = float64(ended.GetCopiedBytes())/1e6, ended.GetPasses()
	r.Rate = r.MB / max(r.Seconds, 1e-3)
	r.P99Ratio = r.Copy.P99 / max(r.Quiet.P99, 1e-3)
	return r, nil
}

var errNotMoved = errors.New("the queue was not moved")

// await waits until a move has reached a phase.
func (m *moving) await(ctx context.Context, to *admin.Node, epoch uint64, phase pb.MovePhase) (*pb.FleetMove, error) {
	for {
		list, err := to.Moves(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, err
		} // other errors are temporary: a client replaces the connection to a node that does not respond in time
		for _, move := range list.GetMoves() {
			switch {
			case move.GetEpoch() != epoch:
			case move.GetPhase() == pb.MovePhase_MOVE_PHASE_NOT_MOVED, move.GetPhase() == pb.MovePhase_MOVE_PHASE_CANCELED:
				return nil, fmt.Errorf("%w: %s", errNotMoved, move.GetError())
			case move.GetPhase() >= phase:
				return move, nil
			}
		}
		if err := elapse(ctx, movePoll); err != nil {
			return nil, err
		}
	}
}
