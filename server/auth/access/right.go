// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"strings"
)

// Right is a set of rights.
type Right uint16

// Publish to Manage are rights on queues; the others apply to the pair.
const (
	Publish Right = 1 << iota // publish to a queue
	Consume                   // consume and acknowledge messages of a subscription
	Browse                    // read messages without consuming them, and describe the queue
	Manage                    // create, alter, purge and delete a queue and its subscriptions
	Operate                   // operate the nodes: switchover, settings, maintenance, access rules
	Audit                     // read the audit log
	Peer                      // calls reserved for the other node of the pair

	// QueueRights is the rights that a rule grants on queues.
	QueueRights = Publish | Consume | Browse | Manage
)

// rightNames is in bit order.
var rightNames = [...]string{"publish", "consume", "browse", "manage", "operate", "audit", "peer"}

// String returns the names of the rights, comma-separated.
func (r Right) String() string {
	var names []string
	for i, name := range rightNames {
		if r>>i&1 == 1 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// ParseRight returns the right with a name.
func ParseRight(name string) (Right, error) {
	for i, n := range rightNames {
		if n == name && Right(1)<<i != Peer {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("%w: unknown right %q; must be one of %s", ErrInvalid, name,
		strings.Join(rightNames[:len(rightNames)-1], ", "))
}
