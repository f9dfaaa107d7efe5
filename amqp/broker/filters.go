// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"maps"
	"strconv"

	"github.com/lockstep-mq/lockstep/amqp/convert"
	"github.com/lockstep-mq/lockstep/amqp/selector"
	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Descriptors of the supported source filters.
const (
	selectorName wire.Symbol = "apache.org:selector-filter:string"
	selectorCode uint64      = 0x0000468C00000004
	noLocalName  wire.Symbol = "apache.org:no-local-filter:list"
	noLocalCode  uint64      = 0x0000468C00000003
)

type filters struct {
	cel     string // empty: all messages
	noLocal bool
	known   wire.Map // supported filters
}

// readFilters parses the filters of a source, and ignores unsupported filters, as the specification requires
// (3.5.1).
func readFilters(m wire.Map) (*filters, error) {
	f := &filters{}
	for _, e := range m {
		d, ok := e.Value.(wire.Described)
		if !ok {
			continue
		}
		switch d.Descriptor {
		case selectorName, selectorCode:
			text, ok := d.Value.(string)
			if !ok {
				return nil, session.Errorf(session.InvalidField, "selector is not a string")
			}
			cel, err := selector.ToCEL(text)
			if err != nil {
				e := session.Errorf(session.InvalidField, "selector %.100q: %v", text, err)
				e.Info = wire.Fields{{Key: wire.Symbol("invalid-field"), Value: wire.Symbol("filter")}}
				return nil, e
			}
			f.cel = cel
		case noLocalName, noLocalCode:
			f.noLocal = true
		default:
			continue
		}
		f.known = append(f.known, e)
	}
	return f, nil
}

func both(a, b string) string {
	switch {
	case a == "":
		return b
	case b == "":
		return a
	}
	return "(" + a + ") && (" + b + ")"
}

// mark enables the property convert.ContainerKey for messages that AMQP clients publish to a queue. It stays enabled
// while this node runs, because a durable subscription may need the property.
func (s *Server) mark(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	marked := map[string]bool{queue: true}
	if before := s.marked.Load(); before != nil {
		maps.Copy(marked, *before)
	}
	s.marked.Store(&marked)
}

func mark(m *pb.Message, container string) {
	if m.Properties == nil {
		m.Properties = make(map[string]string, 1)
	}
	m.Properties[convert.ContainerKey] = container
}

func notFrom(container string) string {
	key := strconv.Quote(convert.ContainerKey)
	return "!(" + key + " in properties) || properties[" + key + "] != " + strconv.Quote(container)
}
