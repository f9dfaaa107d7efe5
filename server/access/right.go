// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"strings"
)

// Right is a set of rights.
type Right uint16

// The rights. Those from Publish to Manage are rights on queues; the others are on the pair.
const (
	Publish Right = 1 << iota // publish to a queue
	Consume                   // take messages of a subscription, and acknowledge them
	Browse                    // read messages without taking them, and see the queue
	Manage                    // create, alter, purge and delete a queue and its subscriptions
	Operate                   // all that is about the nodes: switchover, settings, maintenance, rules
	Audit                     // read the audit
	Peer                      // what only the other node of the pair may call

	// QueueRights are those that a rule gives on queues.
	QueueRights = Publish | Consume | Browse | Manage
)

// rightNames are in the order of the bits.
var rightNames = [...]string{"publish", "consume", "browse", "manage", "operate", "audit", "peer"}

// String names the rights of the set, comma-separated.
func (r Right) String() string {
	var names []string
	for i, name := range rightNames {
		if r>>i&1 == 1 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// ParseRight returns the right of a name.
func ParseRight(name string) (Right, error) {
	for i, n := range rightNames {
		if n == name && Right(1)<<i != Peer {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("%w: there is no right %q; the rights are %s", ErrInvalid, name,
		strings.Join(rightNames[:len(rightNames)-1], ", "))
}
