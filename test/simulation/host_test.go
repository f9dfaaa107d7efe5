// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	mathrand "math/rand"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// clientHost is where the clients run.
const clientHost = "client"

// restartAfter is how long it takes a service manager to start a node again that ended by itself.
const restartAfter = 200 * time.Millisecond

// host is a machine with one node on it.
type host struct {
	w       *world
	name    string
	address string

	mu   sync.Mutex // guards all below
	vol  *volume    // the disk that is in it
	boot int
	run  *run // the last one that was started
	down bool // killed, and to be started only by the fault that killed it
	lost bool // … by a power failure
	over bool // the simulation is
}

// run is one process.
type run struct {
	net      *simnet.Process
	disk     *disk
	cancel   context.CancelFunc
	killed   bool          // it has no network, coordinator and disk any more; guarded by host.mu
	stopping bool          // it was asked to end; guarded by host.mu
	done     chan struct{} // closed when node.Run has returned
	err      error         // set before done is closed
}

// settings of a node. The small sizes make segments, checkpoints and snapshots happen within seconds.
func (h *host) settings() config.Config {
	c := config.Default()
	o := h.w.options
	c.Node.Name = h.name
	c.Data.Dir = "/data"
	c.Listen, c.Advertise, c.Insecure = h.address, h.address, true // the network is one in memory
	c.Coordinator.Etcd.Endpoints = []string{"simulated:1"}
	c.Memory.Budget = 16 << 20
	c.Sync = o.Sync
	c.PageSize = config.Size(o.PageSize[h.name])
	c.Checkpoint.Bytes = config.Size(o.CheckpointBytes)
	c.Checkpoint.Interval = config.Duration(o.CheckpointInterval)
	c.WAL.SegmentBytes, c.WAL.KeepBytes = 1<<20, config.Size(o.LogKeepBytes)
	if h.name == "a" {
		c.WAL.Archive, c.WAL.ArchiveHold = o.Archive, 2<<20
	}
	c.MinInSync = o.MinInSync
	c.Disk.StallTimeout = config.Duration(2 * time.Second)
	return c
}

// start starts the node on what its disk holds. A process that was killed there may still be on its way out: it can
// touch nothing any more.
func (h *host) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.startLocked()
}

func (h *host) startLocked() {
	if h.over || h.run != nil && !h.run.killed {
		return
	}
	h.down = false
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{
		net: h.w.net.NewProcess(h.name), disk: newDisk(h.vol.mem, h.w.rand()), cancel: cancel,
		done: make(chan struct{}),
	}
	h.run = r
	cfg, log, boot := h.settings(), h.w.log.Named(h.name), time.Duration(h.boot).String()
	h.w.running.Go(func() {
		defer close(r.done)
		r.err = node.Run(ctx, cfg, log, node.Options{
			Version: "simulation", FS: r.disk, CanRestart: true,
			Environment: node.Environment{
				Listen: r.net.Listen, Dial: r.net.Dial, BootID: boot,
				Coordinator: func(failover.NodeInfo) (failover.Coordinator, error) {
					return h.w.authority.connect(h.name, r.net.Dead()), nil
				},
			},
		})
	})
	h.w.running.Go(func() { h.supervise(r) })
}

// supervise starts the node again when it ends by itself.
func (h *host) supervise(r *run) {
	<-r.done
	h.mu.Lock()
	byItself := !r.killed
	if byItself { // its kernel closes what it had
		h.endLocked(r)
	}
	byItself = byItself && !r.stopping
	if byItself && !errors.Is(r.err, node.ErrRestart) {
		h.loseUnsynced() // an fsync has failed, as a rule
	}
	h.mu.Unlock()
	if !byItself {
		return
	}
	h.w.note("%s ended by itself: %v", h.name, r.err)
	select {
	case <-time.After(restartAfter):
	case <-h.w.over:
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.down && h.run == r {
		h.startLocked()
	}
}

// endLocked takes network, coordinator and disk away from a process. The order matters: nothing that the clients or the
// other node could hear may depend on what the disk loses.
func (h *host) endLocked(r *run) {
	r.killed = true
	r.net.Kill()
	h.w.authority.forsake(h.name)
	r.cancel()
	r.disk.change(func(d *disk) { d.dead = true })
}

// loseUnsynced leaves on the disk what a power failure could.
func (h *host) loseUnsynced() {
	h.vol.mem = h.vol.mem.CrashClone(mathrand.New(mathrand.NewSource(h.w.rand().Int64())))
}

// kill ends the node at once. With power its host is gone, too: it says nothing any more, and loses what was not
// synced.
func (h *host) kill(power bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.run
	if r == nil || r.killed || h.down {
		return false
	}
	h.down, h.lost = true, power
	if power {
		h.w.net.SetPower(h.name, false)
	}
	h.endLocked(r)
	if power {
		h.boot++
		h.loseUnsynced()
	}
	return true
}

// stopForNow asks the node to end, without waiting for it.
func (h *host) stopForNow() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.run
	if r == nil || r.killed || h.down {
		return false
	}
	h.down, h.lost, r.stopping = true, false, true
	r.cancel()
	return true
}

// restart starts the node again after kill or stopForNow.
func (h *host) restart() {
	h.mu.Lock()
	down, lost, r := h.down, h.lost, h.run
	h.mu.Unlock()
	if !down {
		return
	}
	h.w.net.SetPower(h.name, true)
	if !lost {
		<-r.done // what keeps the page cache keeps the locks of a process that is not gone yet
	}
	h.start()
}

// onDisk changes the disk of the running process; false if there is none.
func (h *host) onDisk(f func(*disk)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run != nil {
		h.run.disk.change(f)
	}
	return h.run != nil && !h.run.killed
}

// alive tells whether the node runs.
func (h *host) alive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.run != nil && !h.run.killed && !h.down
}

// stop ends the node gently, at the end of the simulation.
func (h *host) stop() error {
	h.mu.Lock()
	h.over = true
	r := h.run
	if r != nil && !r.killed {
		r.stopping = true
		r.cancel()
	}
	h.mu.Unlock()
	if r == nil {
		return errors.New("was never started")
	}
	<-r.done
	return r.err
}

// newHost makes a host with an empty disk.
func newHost(w *world, name string) *host {
	return &host{w: w, name: name, address: name + ":7420", vol: newVolume()}
}

// logger is what nodes log to: nothing, unless one seed is replayed.
func logger(out zap.Option, verbose bool) *zap.Logger {
	if !verbose {
		return zap.NewNop()
	}
	c := zap.NewDevelopmentConfig()
	c.DisableStacktrace = true
	l, err := c.Build(out)
	if err != nil {
		return zap.NewNop()
	}
	return l
}
