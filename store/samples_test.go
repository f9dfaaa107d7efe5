// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Samples visits each queue once, over several acquisitions of the lock.
func TestSamples(t *testing.T) {
	n := openNode(t, options(memfs.New()))
	for _, queues := range []int{0, 1, 1000, 2500} {
		for i := query.QueueCount(n.s); i < queues; i++ {
			n.commit(func(b *txn.Builder) { b.CreateQueue(fmt.Sprintf("q%d", i), txn.Config{}, "s") })
		}
		var got []query.QueueSample
		query.Samples(n.s, func(q query.QueueSample) { got = append(got, q) })
		require.Equal(t, query.Sample(n.s, nil), got)
		require.Len(t, got, queues)
	}
}
