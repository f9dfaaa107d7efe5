// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/vfs/memfs"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// This file draws what may become of disks: a data directory is neither unique nor always the newest
// (docs/decisions/0010).

// disksSeeds is how many seeds TestDisks runs by default; in so many every move has to have struck.
const disksSeeds = 60

// TestDisks puts older images back, starts copies of a disk beside the original, swaps disks, and empties them. The
// pair recovers without an operator; or, where docs/explanation/failover.md describes a wait for an operator, no node
// serves an older image, the nodes report why, and the operator, who restores the newest disk or stops the copy, loses
// nothing.
func TestDisks(t *testing.T) {
	var total totals
	defer func() {
		t.Log(total.String())
		if total.seeds < disksSeeds {
			return
		}
		for _, what := range append(moveNames[:], outcomes()...) {
			if total.sum.moves[what] == 0 {
				t.Errorf("in %d seeds this never came up, so that nothing is proven about it: %s", total.seeds, what)
			}
		}
	}()
	runSeeds(t, &total, disksSeeds, func(t *testing.T, seed uint64, verbose bool) result {
		return simulate(t, seed, verbose, func(w *world) scenario {
			// without, a power failure alone may lose what the other node has to have, and does not here
			w.options.Sync = always
			w.authority.leases = true
			plan := drawMoves(rngOf(seed))
			return scenario{fmt.Sprint(plan), func() error {
				return w.runWith(func(h *historycheck.History) error { return w.moveDisks(h, plan) })
			}}
		})
	})
}

// volume is a disk, whichever host it is in.
type volume struct {
	mem    *memfs.FS
	images []image // older states of it, the oldest first
}

// image is the state of a disk at some moment, as a power failure, or a snapshot of a machine, could have left it.
type image struct {
	mem *memfs.FS
	end lsn.Position // the log does not go beyond it
}

func newVolume() *volume { return &volume{mem: memfs.New()} }

// copied makes a disk of an image. An image can be used more than once.
func (v *volume) copied(i image) *volume {
	return &volume{mem: i.mem.CrashClone(nil), images: v.images}
}

// put puts a disk in place of that of a host, which must be down, and returns the one that was there.
func (h *host) put(v *volume) *volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.vol
	h.vol = v
	return old
}

// takeImage keeps the state that the disk of a host has now. rng nil: only what was synced; otherwise an arbitrary part
// of the rest, too.
func (w *world) takeImage(ctx context.Context, h *host, rng *mathrand.Rand) (image, error) {
	h.mu.Lock()
	v := h.vol
	i := image{mem: v.mem.CrashClone(rng)}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	// later: its log is not shorter
	s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return image{}, fmt.Errorf("status of %s, of which an image is taken: %w", h.name, err)
	}
	i.end = lsn.Position{LSN: s.GetStore().GetLogEnd().GetLsn(), Term: s.GetStore().GetLogEnd().GetTerm()}
	h.mu.Lock()
	defer h.mu.Unlock()
	v.images = append(v.images, i)
	return i, nil
}

// highMark is what the coordinator knows of how far the pair has committed.
func (w *world) highMark(ctx context.Context) (failover.Mark, error) {
	rec, _, err := w.authority.within.Load(ctx)
	if err != nil {
		return failover.Mark{}, fmt.Errorf("load the record: %w", err)
	}
	mark, err := w.authority.within.LoadMark(ctx)
	if err != nil {
		return failover.Mark{}, fmt.Errorf("load the mark: %w", err)
	}
	if rec.Mark.Pair == rec.PairID && mark.Less(rec.Mark) {
		mark = rec.Mark
	}
	return mark, nil
}

// outdate waits until the coordinator knows that an image is old.
func (w *world) outdate(ctx context.Context, i image) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for {
		mark, err := w.highMark(ctx)
		if err != nil || !mark.Reached(i.end) {
			return err
		}
		if sleep(ctx, poll); ctx.Err() != nil {
			return errors.New("the mark does not go on, with a pair that serves")
		}
	}
}

// move is what becomes of disks.
type move uint8

const (
	// an older image is put back over a node's disk; the coordinator knows that the pair has gone on since
	oldImage   move = iota
	youngImage      // the same, and the coordinator does not know it, as a rule
	oldImages       // older images are put back over both disks
	clone           // a copy of a node's disk is started at the other one's address, beside the original
	cloneFirst      // … after both went down, and before the original
	cloneApart      // … while the original cannot be reached by any host
	swapDisks       // both go down, and their disks change places
	emptyDisk       // a node comes back with an empty disk
	restored        // a node comes back with a backup that was restored, and so is of no pair
	moves
)

var moveNames = [moves]string{
	"old-image", "young-image", "old-image-of-both", "clone", "clone-first", "clone-apart", "swap", "empty-disk",
	"restored-backup",
}

func (m move) String() string { return moveNames[m] }

// order in which the node with another disk, and the other one, start.
type order uint8

const (
	otherUp    order = iota // the other one was not down
	movedFirst              // the other one soon after it
	otherFirst
	together
	alone // the other one only when an operator has come
	orders
)

func (o order) String() string {
	return [...]string{"other up", "moved first", "other first", "together", "alone"}[o]
}

// diskMove is one entry of the plan.
type diskMove struct {
	After time.Duration // from the moment that the pair serves
	Move  move
	Whom  whom
	Order order
	Power bool          // the hosts lose power; otherwise the processes are killed
	Age   time.Duration // of a young image
	Down  time.Duration // how long the hosts are down
	Gap   time.Duration // between two starts: less than a node waits for the other one
	Dice  uint64
}

func (m diskMove) String() string {
	power := "killed"
	if m.Power {
		power = "without power"
	}
	return fmt.Sprintf("%v of %v, %v, %s, after %v, age %v, down %v, gap %v (%d)",
		m.Move, m.Whom, m.Order, power, m.After, m.Age, m.Down, m.Gap, m.Dice)
}

// drawMoves draws what becomes of the disks in one simulation, one after the other: each with the pair in sync.
func drawMoves(rng *rand.Rand) []diskMove {
	plan := make([]diskMove, 1+rng.IntN(3))
	upTo := func(d time.Duration) time.Duration {
		return time.Duration(rng.Int64N(int64(d))).Round(time.Microsecond)
	}
	for i := range plan {
		m := diskMove{
			After: upTo(2 * time.Second), Move: move(rng.IntN(int(moves))), Whom: whom(rng.IntN(4)),
			Order: order(rng.IntN(int(orders))),
			Power: rng.IntN(2) == 0, Age: upTo(800 * time.Millisecond), Down: upTo(1500 * time.Millisecond),
			Gap:  upTo(500 * time.Millisecond),
			Dice: rng.Uint64N(1 << 32),
		}
		if m.Order == alone && m.Move == youngImage {
			m.Order = together // no node could know better: docs/explanation/failover.md says so
		}
		plan[i] = m
	}
	return plan
}

// outcomes are what has to have become of moves, in the words of the nodes.
func outcomes() []string { return []string{waitedPutBack, waitedCopy, wasSuperseded} }

const (
	// it has got the other one's content since, and the image is from before
	waitedOtherStore = "expects another store on this node"
	waitedActive     = "only the active holds everything"
	waitedTakeover   = "waiting for the other node to take over"
	waitedPutBack    = "was put back"
	waitedCopy       = "two processes with one identity"
	wasSuperseded    = "superseded"
)
