// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// A directory is neither unique nor always the newest: virtual machines are put back to a snapshot, disks are cloned,
// directories are copied. These tests copy the directories of a pair's nodes, in each way and at each time, start the
// copies beside the originals or in their place, and hold everything that any process has acknowledged against what the
// pair has in the end.

// putback is one case.
type putback struct {
	raft bool   // the coordinator; otherwise etcd
	what string // whose directory: active, standby, both
	// copied while the node is stopped; while it runs, file by file; in one moment, as a snapshot of a machine is
	// (frozen)
	how string
	// where the copy is started: at the address of the other node, in place of that one's directory; at a third
	// address; or back over the original, after both nodes went down at once.
	where string
	// age of the copy when it is started: old is some seconds, young is less than a second after the copy was taken, so
	// that the coordinator cannot know better.
	age string
	// order of the starts, if it goes back: copy first; original first; together; alone (the other one stays down);
	// other up (it was never down); later (the other one comes when the copy has decided). A copy that is started while
	// the original runs: beside; beside, and the original dies after a while.
	order string
	// coordinator is put back as well, to the same moment.
	coordinator bool
	// want is what has to become of it. serves: the pair finds together by itself; waits: no node serves until an
	// operator has helped.
	want string
}

func (c putback) String() string {
	kind, also := "etcd", ""
	if c.raft {
		kind = "raft"
	}
	if c.coordinator {
		also = " and the coordinator"
	}
	return fmt.Sprintf("%s, %s copied %s, %s, %s%s, %s", kind, c.what, c.how, c.where, c.age, also, c.order)
}

// putbacks are all cases.
func putbacks() (all []putback) {
	for _, raft := range []bool{false, true} {
		for _, how := range []string{"stopped", "running", "frozen"} {
			for _, what := range []string{"active", "standby"} {
				for _, age := range []string{"old", "young"} {
					for _, order := range []string{
						"copy first", "original first", "together", "other up", "later",
						"alone",
					} {
						want := "serves"
						switch {
						case age == "young" && (order == "later" || order == "alone"):
							continue // no node can know better: docs/explanation/failover.md says so
						case order == "alone":
							want = "waits"
						}
						all = append(all, putback{
							raft: raft, what: what, how: how, where: "back", age: age,
							order: order, want: want,
						})
					}
				}
				for _, where := range []string{"at the other's address", "at a third address"} {
					if raft && where == "at a third address" {
						continue // three voters have three addresses
					}
					for _, order := range []string{"beside", originalDies} {
						all = append(all, putback{
							raft: raft, what: what, how: how, where: where, age: "old",
							order: order, want: "settles",
						})
					}
					all = append(all, putback{
						raft: raft, what: what, how: how, where: where, age: "young",
						order: "beside", want: "settles",
					})
				}
			}
			all = append(all, putback{
				raft: raft, what: "both", how: how, where: "back", age: "old", order: "together",
				want: "waits",
			})
		}
	}
	for _, what := range []string{"active", "standby"} {
		for _, order := range []string{"copy first", "original first", "together"} {
			all = append(all, putback{
				what: what, how: "frozen", where: "back", age: "old", order: order,
				coordinator: true, want: "serves",
			})
		}
	}
	return all
}

// reproductions are the cases of the two findings that this file is about; they always run.
func reproductions() []putback {
	return []putback{
		{what: "active", how: "stopped", where: "at the other's address", age: "old", order: "beside", want: "settles"},
		{what: "active", how: "frozen", where: "back", age: "old", order: "copy first", want: "serves"},
		{what: "active", how: "frozen", where: "back", age: "young", order: "together", want: "serves"},
		{raft: true, what: "standby", how: "frozen", where: "back", age: "old", order: "copy first", want: "serves"},
	}
}

// originalDies is an order.
const originalDies = "beside, and the original dies"

const (
	// putbackRandom is how many more cases a run without LOCKSTEP_MATRIX=all does, by the dice.
	putbackRandom = 4
	// putbackOld is longer than the interval of the coordinator's marks, putbackYoung is shorter.
	putbackOld, putbackYoung = 2500 * time.Millisecond, 300 * time.Millisecond
	// putbackPause is how long clients go on, with a copy beside the original or no node that serves, before the
	// operator comes.
	putbackPause = 4 * time.Second
	// putbackLater is longer than a node leaves the role to another one that may be starting.
	putbackLater = 5 * time.Second
)

// TestPutBack goes through the cases of a copied directory: those that were found first and some by the dice, or with
// LOCKSTEP_MATRIX=all all of them. LOCKSTEP_PUTBACK is a part of the name of those to run.
func TestPutBack(t *testing.T) {
	t.Parallel() // it mostly waits
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 11))
	cases := reproductions()
	all := putbacks()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	only, picked := os.LookupEnv("LOCKSTEP_PUTBACK")
	if os.Getenv("LOCKSTEP_MATRIX") == "all" || picked {
		cases = all
	} else if !testing.Short() {
		cases = append(cases, all[:putbackRandom]...)
	}
	for i, c := range cases {
		if picked && !strings.Contains(c.String(), only) {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			r := &putbackRun{
				c: c, seed: s + uint64(i), images: map[*cluster.Node]string{},
				own: map[*cluster.Node]string{},
			}
			r.run(t)
		})
	}
}
