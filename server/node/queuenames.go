// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const queueIDKey = "queue_id"

// queueNamer adds the queue name to each log line that contains only a queue ID.
type queueNamer struct {
	zapcore.Core

	of *queueNames
}

type queueNames struct {
	// find returns the name of a queue, or "" if it is unknown. It must not block.
	find atomic.Pointer[func(id uint64) string]
}

func (q *queueNames) use(find func(id uint64) string) { q.find.Store(&find) }

func (q *queueNames) wrap(core zapcore.Core) zapcore.Core { return &queueNamer{Core: core, of: q} }

func (c *queueNamer) With(fields []zapcore.Field) zapcore.Core {
	return &queueNamer{Core: c.Core.With(c.of.add(fields)), of: c.of}
}

func (c *queueNamer) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *queueNamer) Write(e zapcore.Entry, fields []zapcore.Field) error {
	return c.Core.Write(e, c.of.add(fields)) //nolint:wrapcheck // c is a core, too
}

func (q *queueNames) add(fields []zapcore.Field) []zapcore.Field {
	find := q.find.Load()
	if find == nil {
		return fields
	}
	id, found := uint64(0), false
	for i := range fields {
		switch f := &fields[i]; f.Key {
		case "queue":
			return fields
		case queueIDKey:
			id, found = uint64(f.Integer), f.Type == zapcore.Uint64Type
		}
	}
	if !found {
		return fields
	}
	if name := (*find)(id); name != "" {
		return append(fields[:len(fields):len(fields)], zap.String("queue", name))
	}
	return fields
}
