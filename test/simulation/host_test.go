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

// clientHost is the host of the clients.
const clientHost = "client"

// restartAfter is the delay after which the simulated service manager restarts a node that has exited.
const restartAfter = 200 * time.Millisecond

// host is a machine with one node.
type host struct {
	w       *world
	name    string
	address string

	mu   sync.Mutex // guards all fields below
	vol  *volume    // the disk in this host
	boot int
	run  *run // the last started process
	down bool // ended by a fault or operator, and not restarted automatically
	lost bool // down because of a power failure
	over bool // the simulation has ended
}

type run struct {
	net      *simnet.Process
	disk     *disk
	cancel   context.CancelFunc
	killed   bool          // network, coordinator and disk were revoked; guarded by host.mu
	stopping bool          // a stop was requested; guarded by host.mu
	done     chan struct{} // closed when node.Run has returned
	err      error         // set before done is closed
}

// settings returns the settings of the node. The sizes are so small that segments, checkpoints and snapshots occur
// within seconds.
func (h *host) settings() config.Config {
	c := config.Default()
	o := h.w.options
	c.Node.Name = h.name
	c.Data.Dir = "/data"
	c.Listen, c.Advertise, c.Insecure = h.address, h.address, true // the network is in memory
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

// start starts the node. A process that was killed earlier may still be running, without access to any resource.
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
					return h.w.store.connect(h.name, r.net.Dead()), nil
				},
			},
		})
	})
	h.w.running.Go(func() { h.supervise(r) })
}

// supervise restarts the node when its process r exits unexpectedly.
func (h *host) supervise(r *run) {
	<-r.done
	h.mu.Lock()
	automatic := !r.killed
	if automatic { // as the kernel closes the connections and files of a process
		h.endLocked(r)
	}
	automatic = automatic && !r.stopping
	if automatic && !errors.Is(r.err, node.ErrRestart) {
		h.loseUnsynced() // usually because an fsync failed
	}
	h.mu.Unlock()
	if !automatic {
		return
	}
	h.w.record("%s exited unexpectedly: %v", h.name, r.err)
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

// endLocked revokes the network, the coordinator and the disk of a process. The network is first: no response to
// clients or to the other node may depend on data that the disk loses.
func (h *host) endLocked(r *run) {
	r.killed = true
	r.net.Kill()
	h.w.store.disconnect(h.name)
	r.cancel()
	r.disk.change(func(d *disk) { d.dead = true })
}

// loseUnsynced changes the disk to a random state that a power failure could leave.
func (h *host) loseUnsynced() {
	h.vol.mem = h.vol.mem.CrashClone(mathrand.New(mathrand.NewSource(h.w.rand().Int64())))
}

// kill ends the node immediately, and reports whether it was running. With power, the host loses power: it sends
// nothing more, and loses unsynced data.
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

// stopForNow requests a stop of the node without waiting for it, and reports whether the node was running.
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

// restart starts the node after kill or stopForNow.
func (h *host) restart() {
	h.mu.Lock()
	down, lost, r := h.down, h.lost, h.run
	h.mu.Unlock()
	if !down {
		return
	}
	h.w.net.SetPower(h.name, true)
	if !lost {
		<-r.done // the process holds its file locks until it has exited
	}
	h.start()
}

// onDisk calls f on the disk of the last process, and reports whether that process is running.
func (h *host) onDisk(f func(*disk)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run != nil {
		h.run.disk.change(f)
	}
	return h.run != nil && !h.run.killed
}

func (h *host) alive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.run != nil && !h.run.killed && !h.down
}

// stop shuts down the node at the end of the simulation.
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
		return errors.New("node was never started")
	}
	<-r.done
	return r.err
}

// newHost creates a host with an empty disk.
func newHost(w *world, name string) *host {
	return &host{w: w, name: name, address: name + ":7420", vol: newVolume()}
}

// logger returns the logger of the nodes. If verbose is false, the logger discards everything.
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
