// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

// Order configures properties of messages and queues that affect the cost of storing or delivering messages.
type Order struct {
	// Groups is the number of groups over which the messages are distributed round-robin; 0 means no groups.
	Groups int
	// Priorities creates queues with priorities. The ten priorities are assigned to the messages round-robin.
	Priorities bool
	// Parts is the number of values of a message property, assigned round-robin from 0 on; 0 omits the property.
	Parts int
	// DedupWindow is the deduplication window of the queues. If it is set, each message has its own message ID.
	DedupWindow time.Duration
}

func (o *Order) config() admin.QueueConfig {
	return admin.QueueConfig{Priorities: o.Priorities, DedupWindow: o.DedupWindow}
}

func (o *Order) label(m *client.Message, n int64) {
	if o.Groups > 0 {
		m.Group = fmt.Sprint("group-", n%int64(o.Groups))
	}
	if o.Priorities {
		m.Priority = &priorities[n%int64(len(priorities))]
	}
	if o.DedupWindow > 0 {
		m.MessageID = fmt.Sprint("message-", n)
	}
	if o.Parts > 0 {
		m.Properties = map[string]string{partProperty: fmt.Sprint(n % int64(o.Parts))}
	}
}

const partProperty = "part"

// PartFilter returns the filter that matches the messages of part i.
func (o *Order) PartFilter(i int) string {
	return fmt.Sprintf("properties.%s == %q", partProperty, fmt.Sprint(i%o.Parts))
}

// PartSize returns the number of messages of part i among n messages.
func (o *Order) PartSize(i, n int) (size int) {
	for k := 1; k <= n; k++ {
		if k%o.Parts == i%o.Parts {
			size++
		}
	}
	return size
}

var priorities = [...]uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9} //nolint:gochecknoglobals // it never changes
