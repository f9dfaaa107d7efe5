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
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// This file generates disk moves: a data directory may be a copy or out of date (docs/decisions/0010).

// disksSeeds is the default number of seeds of TestDisks, and the number from which every move must have taken effect.
const disksSeeds = 60

// A pair recovers after its disks are replaced by older images, copied while the original is running, swapped and
// emptied. Where docs/explanation/failover.md states that the nodes wait for an operator, no node serves with an older
// image, and the nodes report the reason. No message is lost when the operator restores the newest disk or stops the
// copy.
func TestDisks(t *testing.T) {
	var total totals
	defer func() {
		t.Log(total.String())
		if total.seeds < disksSeeds {
			return
		}
		for _, label := range append(moveNames[:], outcomes()...) {
			if total.sum.moves[label] == 0 {
				t.Errorf("never occurred in %d seeds, and so was not tested: %s", total.seeds, label)
			}
		}
	}()
	runSeeds(t, &total, disksSeeds, func(t *testing.T, seed uint64, verbose bool) result {
		return simulate(t, seed, verbose, func(w *world) scenario {
			// with another mode, a power failure alone may lose data that the other node must have
			w.options.Sync = always
			w.store.leases = true
			plan := drawMoves(rngOf(seed))
			return scenario{fmt.Sprint(plan), func() error {
				return w.runWith(func(h *historycheck.History) error { return w.moveDisks(h, plan) })
			}}
		})
	})
}

// volume is a disk, independent of the host it is in.
type volume struct {
	mem    *memfs.FS
	images []image // older states of the disk, the oldest first
}

// image is a past state of a disk, as after a power failure or in a machine snapshot.
type image struct {
	mem *memfs.FS
	end lsn.Position // the log in the image ends here or before
}

func newVolume() *volume { return &volume{mem: memfs.New()} }

// copied creates a disk from an image. The image stays usable.
func (v *volume) copied(i image) *volume {
	return &volume{mem: i.mem.CrashClone(nil), images: v.images}
}

// put replaces the disk of a host, which must be down, and returns the previous disk.
func (h *host) put(v *volume) *volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.vol
	h.vol = v
	return old
}

// takeImage saves the current state of a host's disk: the synced data and, if rng is not nil, a random part of the
// other data.
func (w *world) takeImage(ctx context.Context, h *host, rng *mathrand.Rand) (image, error) {
	h.mu.Lock()
	v := h.vol
	i := image{mem: v.mem.CrashClone(rng)}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	// The end is read after the image was taken, so the log of the image is not longer.
	s, err := pb.NewAdminServiceClient(w.ConnTo(h.address)).GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return image{}, fmt.Errorf("status of %s after taking an image: %w", h.name, err)
	}
	i.end = lsn.Position{LSN: s.GetStore().GetLogEnd().GetLsn(), Term: s.GetStore().GetLogEnd().GetTerm()}
	h.mu.Lock()
	defer h.mu.Unlock()
	v.images = append(v.images, i)
	return i, nil
}

// highMark returns the coordinator's high-water mark of the pair.
func (w *world) highMark(ctx context.Context) (failover.Mark, error) {
	rec, _, err := w.store.within.Load(ctx)
	if err != nil {
		return failover.Mark{}, fmt.Errorf("load the record: %w", err)
	}
	mark, err := w.store.within.LoadMark(ctx)
	if err != nil {
		return failover.Mark{}, fmt.Errorf("load the mark: %w", err)
	}
	if rec.Mark.Pair == rec.PairID && mark.Less(rec.Mark) {
		mark = rec.Mark
	}
	return mark, nil
}

// makeOutdated waits until the coordinator's high-water mark is beyond an image.
func (w *world) makeOutdated(ctx context.Context, i image) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for {
		mark, err := w.highMark(ctx)
		if err != nil || !mark.Reached(i.end) {
			return err
		}
		if sleep(ctx, poll); ctx.Err() != nil {
			return errors.New("the high-water mark does not advance while the pair serves")
		}
	}
}

// move is an operation on disks.
type move uint8

const (
	// a node's disk is replaced by an older image; the coordinator has a later high-water mark
	oldImage      move = iota
	recentImage        // a node's disk is replaced by an older image, usually without a later high-water mark
	oldImages          // the disks of both nodes are replaced by older images
	clone              // a copy of a node's disk starts on the other host while the original is running
	cloneFirst         // a copy starts on the other host after both nodes went down, and before the original
	cloneIsolated      // a copy starts on the other host while the original has no connection to any host
	swapDisks          // both nodes go down, and their disks are exchanged
	emptyDisk          // a node returns with an empty disk
	restored           // a node returns with a restored backup, which belongs to no pair
	moves
)

var moveNames = [moves]string{
	"old-image", "recent-image", "old-image-of-both", "clone", "clone-first", "clone-isolated", "swap", "empty-disk",
	"restored-backup",
}

func (m move) String() string { return moveNames[m] }

// order is the order in which the node with the moved disk and the other node start.
type order uint8

const (
	otherUp    order = iota // the other node was not down
	movedFirst              // the other node starts less than 500 ms later
	otherFirst
	together
	alone // the other node starts only when the operator intervenes
	orders
)

func (o order) String() string {
	return [...]string{"other up", "moved first", "other first", "together", "alone"}[o]
}

type diskMove struct {
	After  time.Duration // since the pair started to serve
	Move   move
	Target target
	Order  order
	Power  bool          // the hosts lose power; otherwise the processes are killed
	Age    time.Duration // of a recent image
	Down   time.Duration // how long the hosts are down
	Gap    time.Duration // between the two starts; shorter than a node waits for the other one
	Rand   uint64
}

func (m diskMove) String() string {
	power := "killed"
	if m.Power {
		power = "without power"
	}
	return fmt.Sprintf("%v of %v, %v, %s, after %v, age %v, down %v, gap %v (%d)",
		m.Move, m.Target, m.Order, power, m.After, m.Age, m.Down, m.Gap, m.Rand)
}

// drawMoves generates the moves of one simulation. They are executed in sequence, each with the pair in sync.
func drawMoves(rng *rand.Rand) []diskMove {
	plan := make([]diskMove, 1+rng.IntN(3))
	upTo := func(d time.Duration) time.Duration {
		return time.Duration(rng.Int64N(int64(d))).Round(time.Microsecond)
	}
	for i := range plan {
		m := diskMove{
			After: upTo(2 * time.Second), Move: move(rng.IntN(int(moves))), Target: target(rng.IntN(4)),
			Order: order(rng.IntN(int(orders))),
			Power: rng.IntN(2) == 0, Age: upTo(800 * time.Millisecond), Down: upTo(1500 * time.Millisecond),
			Gap:  upTo(500 * time.Millisecond),
			Rand: rng.Uint64N(1 << 32),
		}
		if m.Order == alone && m.Move == recentImage {
			m.Order = together // a node alone cannot detect a recent image: see docs/explanation/failover.md
		}
		plan[i] = m
	}
	return plan
}

// outcomes returns the parts of reasons that nodes must have reported.
func outcomes() []string { return []string{waitedRollback, waitedCopy, superseded} }

const (
	// the node has since copied the content of the other node, and the image is older
	waitedOtherStore = "lists another store of this node"
	waitedActive     = "only the active has all records"
	waitedTakeover   = "waiting for the other node to take over"
	waitedRollback   = "was rolled back"
	waitedCopy       = "duplicate node identity"
	superseded       = "superseded"
)
