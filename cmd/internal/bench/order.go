// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/client"
)

// Order says what the messages ask for beside the order of their queue.
type Order struct {
	// Groups that the messages are of, in turn; 0: of none.
	Groups int
	// Priorities makes queues with priorities, and gives the messages each of the ten in turn.
	Priorities bool
	// Parts: each message has a property that says of which part it is, 0 to Parts-1 in turn; 0: it has none.
	Parts int
}

// config is that of the queues.
func (o *Order) config() client.QueueConfig { return client.QueueConfig{Priorities: o.Priorities} }

// label gives message n its group and its priority.
func (o *Order) label(m *client.Message, n int64) {
	if o.Groups > 0 {
		m.Group = fmt.Sprint("group-", n%int64(o.Groups))
	}
	if o.Priorities {
		m.Priority = &priorities[n%int64(len(priorities))]
	}
	if o.Parts > 0 {
		m.Properties = map[string]string{partProperty: fmt.Sprint(n % int64(o.Parts))}
	}
}

// partProperty is the property that Order.Parts is about.
const partProperty = "part"

// PartFilter is the filter that messages of one part match, and partSize how many of messages 1 to n do.
func (o *Order) PartFilter(i int) string {
	return fmt.Sprintf("properties.%s == %q", partProperty, fmt.Sprint(i%o.Parts))
}

// PartSize returns the number of messages of part i of n messages.
func (o *Order) PartSize(i, n int) (size int) {
	for k := 1; k <= n; k++ {
		if k%o.Parts == i%o.Parts {
			size++
		}
	}
	return size
}

var priorities = [...]uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9} //nolint:gochecknoglobals // it never changes
