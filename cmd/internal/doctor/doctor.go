// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a machine and the settings of a node before the node is put to work: what would stop it, slow
// it down, or cost data later. It changes nothing but a small file in the data directory's filesystem, which it
// removes, and takes no lock: a node that runs on that directory is not disturbed.
package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/config"
)

// Verdict says how a check ended.
type Verdict string

// The verdicts.
const (
	// OK is as it should be.
	OK Verdict = "ok"
	// Warning works, and may become a problem.
	Warning Verdict = "warning"
	// Problem keeps the node from starting or being safe.
	Problem Verdict = "problem"
	// NotChecked could not be looked at; Means says why.
	NotChecked Verdict = "not checked"
)

// Finding is what one check has found.
type Finding struct {
	// Check is its name; Subject is what it looked at, if there are several.
	Check   string  `json:"check"`
	Subject string  `json:"subject,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Measured is what was seen, Means what that means, and Do what to do about it.
	Measured string `json:"measured,omitempty"`
	Means    string `json:"means,omitempty"`
	Do       string `json:"do,omitempty"`
}

// Options of Run.
type Options struct {
	// Config of the node.
	Config config.Config
	// Peer is the address of the other node, host:port; empty: as the pair's record says.
	Peer string
	// Version of this program.
	Version string
}

// limits of what is waited for.
const (
	askLimit  = 3 * time.Second
	syncLimit = 3 * time.Second
)

// inspector is what the checks share.
type inspector struct {
	o   Options
	cfg config.Config
	now time.Time

	place string // the data directory, or the nearest directory above it that is there
	made  bool   // the data directory is there
	owner int    // process that holds the data directory; 0: none, or not known

	mu          sync.Mutex       // guards what follows
	record      *failover.Record // as etcd has it; nil: none, or not known
	recordAsked bool             // etcd was asked for it
}

// check is one of them, by its name.
type check struct {
	name string
	run  func(context.Context, *inspector) []Finding
}

// checks in the order in which they are told. Those of a later stage use what earlier ones found.
func checks() [][]check {
	return [][]check{
		{
			{"clock", checkClock},
			{"file system", checkFilesystem},
			{"free space", checkSpace},
			{"data directory", checkDirectory},
			{"disk sync", checkSync},
			{"ports", checkPorts},
			{"certificates", checkCertificates},
			{"memory", checkMemory},
			{"open files", checkOpenFiles},
			{"kernel", checkKernel},
			{"processors", checkProcessors},
			{"etcd", checkEtcd},
			{"voters", checkVoters},
		},
		{{"pair", checkPair}, {"other node", checkPeer}},
	}
}

// Run does all checks, those of a stage at the same time.
func Run(ctx context.Context, o Options) []Finding {
	in := &inspector{o: o, cfg: o.Config, now: time.Now()}
	in.place, in.made = nearest(o.Config.Data.Dir)
	in.owner = lockOwner(filepath.Join(o.Config.Data.Dir, "lock"))
	var all []Finding
	for _, stage := range checks() {
		found := make([][]Finding, len(stage))
		var running sync.WaitGroup
		for i, c := range stage {
			running.Go(func() {
				found[i] = c.run(ctx, in)
				for k := range found[i] {
					found[i][k].Check = c.name
				}
			})
		}
		running.Wait()
		for _, f := range found {
			all = append(all, f...)
		}
	}
	return all
}

// Worst is the gravest verdict of all.
func Worst(all []Finding) Verdict {
	worst := OK
	for _, f := range all {
		if f.Verdict == Problem || f.Verdict == Warning && worst != Problem {
			worst = f.Verdict
		}
	}
	return worst
}

// one makes the finding of a check that has one.
func one(v Verdict, measured, means, do string) []Finding {
	return []Finding{{Verdict: v, Measured: measured, Means: means, Do: do}}
}

func notChecked(format string, args ...any) []Finding {
	return []Finding{{Verdict: NotChecked, Means: fmt.Sprintf(format, args...)}}
}

// keepRecord remembers the record of the pair for later stages.
func (in *inspector) keepRecord(r *failover.Record) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.record, in.recordAsked = r, true
}

func (in *inspector) pairRecord() (r *failover.Record, asked bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.record, in.recordAsked
}
