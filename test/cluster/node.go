// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"slices"
	"sync"

	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Node is one node of a pair, or the witness, on a machine whose disk and clock a test can break.
type Node struct {
	*harness.Node
	disk  *harness.Port // what its disk does is said here; nil without Options.Disk
	clock clock         // of its machine; empty without Options.Clock

	mu          sync.Mutex // guards all below
	diskAtStart faultdisk.State
	boots       int // of its machine, if Options.Disk
}

// environment tells the process about its disk and its clock.
func (n *Node) environment(name string) ([]string, error) {
	disk, err := n.diskEnvironment(name)
	return slices.Concat(disk, n.clock.environment()), err
}
