// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"slices"
	"sync"

	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// Node is one node of a pair, or the witness, on a machine with injectable disk and clock faults.
type Node struct {
	*harness.Node
	disk  *harness.Port // control port for disk faults; nil without Options.Disk
	clock clock         // clock of the machine; empty without Options.Clock

	mu          sync.Mutex // guards all fields below
	diskAtStart faultdisk.State
	boots       int // number of power failures; see LosePower
}

// environment returns the variables that configure disk and clock faults.
func (n *Node) environment(name string) ([]string, error) {
	disk, err := n.diskEnvironment(name)
	return slices.Concat(disk, n.clock.environment()), err
}
