// SPDX-License-Identifier: Apache-2.0

// Package doctor checks the settings of a node, its machine, its coordinator and the other node for problems. The node
// can be running: doctor takes no locks, and writes only small temporary files to the data directory.
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

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	// OK means that no problem was found.
	OK Verdict = "ok"
	// Warning means that the node works, but the finding may become a problem.
	Warning Verdict = "warning"
	// Problem means that the node does not start, or does not work safely.
	Problem Verdict = "problem"
	// NotChecked means that the check was not possible; Meaning contains the reason.
	NotChecked Verdict = "not checked"
)

// Finding is the result of one check.
type Finding struct {
	Check   string  `json:"check"`
	Subject string  `json:"subject,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Measured is the observed value, Meaning its consequence, and Do the recommended action.
	Measured string `json:"measured,omitempty"`
	Meaning  string `json:"means,omitempty"`
	Do       string `json:"do,omitempty"`
}

// Options configures Run.
type Options struct {
	Config config.Config
	// Peer is the host:port of the other node. If empty, the address in the cluster record in etcd is used, if any.
	Peer string
	// Version is the version of this program, which is compared with the version of the other node; empty: not compared.
	Version string
}

const (
	queryTimeout = 3 * time.Second
	syncLimit    = 3 * time.Second
)

type inspector struct {
	o   Options
	cfg config.Config
	now time.Time

	place string // the data directory, or its nearest existing parent
	made  bool   // the data directory exists
	owner int    // ID of the process that has locked the data directory; 0: none, or unknown

	mu            sync.Mutex       // guards the fields below
	record        *failover.Record // as stored in etcd; nil: none, or unknown
	recordQueried bool             // etcd was queried for the record
}

type check struct {
	name string
	run  func(context.Context, *inspector) []Finding
}

// checks returns the stages of checks in the order of their output. A stage can use the results of earlier stages.
func checks() [][]check {
	return [][]check{
		{
			{"clock", checkClock},
			{"filesystem", checkFilesystem},
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

// Run runs all checks, and returns their findings. Checks of the same stage run concurrently.
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

func one(v Verdict, measured, meaning, do string) []Finding {
	return []Finding{{Verdict: v, Measured: measured, Meaning: meaning, Do: do}}
}

func notChecked(format string, args ...any) []Finding {
	return []Finding{{Verdict: NotChecked, Meaning: fmt.Sprintf(format, args...)}}
}

func (in *inspector) keepRecord(r *failover.Record) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.record, in.recordQueried = r, true
}

func (in *inspector) pairRecord() (r *failover.Record, asked bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.record, in.recordQueried
}
