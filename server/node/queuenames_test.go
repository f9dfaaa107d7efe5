// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A log line that contains a queue ID also contains the queue name.
func TestQueueNames(t *testing.T) {
	core, logged := observer.New(zapcore.InfoLevel)
	names := new(queueNames)
	log := zap.New(core).WithOptions(zap.WrapCore(names.wrap))
	number := zap.Uint64("queue_id", 7)
	log.Info("before the store is open", number)
	names.use(func(id uint64) string {
		if id == 7 {
			return "orders"
		}
		return ""
	})
	log.Debug("of a level that is off", number)
	log.Info("a line", number)
	log.With(number).Named("part").Info("a line of a part")
	log.Info("a line with a name", number, zap.String("queue", "other"))
	log.Info("a line about a queue that is deleted", zap.Uint64("queue_id", 8))
	var got []any
	for _, e := range logged.All() {
		got = append(got, e.ContextMap()["queue"])
	}
	require.Equal(t, []any{nil, "orders", "orders", "other", nil}, got)
}
