// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// LoadState rebuilds the state machine from a checkpoint's tree. It skips the message index and the schedule index, so
// its duration depends on the number of queues, subscriptions and producers, not on the number of messages.
func LoadState(v *tree.View, meta page.Meta) (*queue.State, error) {
	l := queue.NewLoader()
	schedule := queue.ScheduleKeys()
	for _, r := range [][2][]byte{
		{nil, []byte{index.Letter}}, {[]byte{index.Letter + 1}, schedule.From}, {schedule.To, nil},
	} {
		it := v.Once().Scan(r[0], r[1])
		for it.Next() {
			if err := l.Put(it.Key(), it.Value()); err != nil {
				return nil, fmt.Errorf("%w: checkpoint record %q: %w", index.ErrDataLoss, it.Key(), err)
			}
		}
		if err := it.Err(); err != nil {
			return nil, fmt.Errorf("read checkpoint: %w", err)
		}
	}
	state, err := l.Finish(meta.Position.LSN)
	if err != nil {
		return nil, fmt.Errorf("%w: checkpoint: %w", index.ErrDataLoss, err)
	}
	return state, nil
}
