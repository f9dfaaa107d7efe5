// SPDX-License-Identifier: Apache-2.0

package output

import (
	"encoding/base64"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Position is the position of a log record.
type Position struct {
	Term  uint64 `json:"term"`
	LSN   uint64 `json:"lsn"`
	Chain string `json:"chain"`
}

// NewPosition converts a position of the store.
func NewPosition(p lsn.Position) Position {
	return Position{Term: p.Term, LSN: p.LSN, Chain: fmt.Sprintf("%08x", p.Chain)}
}

// Message is the JSON form of a stored message.
type Message struct {
	Queue         string      `json:"queue"`
	Partition     string      `json:"partition,omitempty"` // of a consumed message of a partitioned queue
	Sequence      uint64      `json:"sequence"`
	PublishedAt   time.Time   `json:"published_at"`
	DeliveryCount uint32      `json:"delivery_count"`
	DeadLetter    *DeadLetter `json:"dead_letter,omitempty"`
	Content
}

// DeadLetter is the origin of a message that was moved to a dead-letter queue, and the reason.
type DeadLetter struct {
	Queue        string    `json:"queue"`
	Subscription string    `json:"subscription"`
	Sequence     uint64    `json:"sequence"`
	Reason       string    `json:"reason"`
	Deliveries   uint32    `json:"deliveries"`
	MovedAt      time.Time `json:"moved_at"`
}

// Content is the JSON form of the fields that the publisher sets.
type Content struct {
	Properties    map[string]string `json:"properties,omitempty"`
	MessageID     string            `json:"message_id,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	ReplyTo       string            `json:"reply_to,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Subject       string            `json:"subject,omitempty"`
	Group         string            `json:"group,omitempty"`
	Priority      *uint8            `json:"priority,omitempty"`
	ExpiresAt     time.Time         `json:"expires_at,omitzero"`
	DeliverAt     time.Time         `json:"deliver_at,omitzero"`
	// TypedProperties are booleans, numbers and, for bytes, {"base64": …}. Numbers without a JSON representation are
	// strings.
	TypedProperties map[string]any `json:"typed_properties,omitempty"`

	// Body is the body if it is valid UTF-8; otherwise, BodyBase64 contains the body.
	Body       *string `json:"body,omitempty"`
	BodyBase64 string  `json:"body_base64,omitempty"`
}

// NewMessage converts a stored message. If body is false, it omits the body.
func NewMessage(queue string, m client.Stored, body bool) Message {
	j := Message{
		Queue: queue, Sequence: m.Sequence, PublishedAt: m.PublishedAt.UTC(), DeliveryCount: m.DeliveryCount,
		Content: Content{
			Properties: m.Properties, MessageID: m.MessageID, CorrelationID: m.CorrelationID, ReplyTo: m.ReplyTo,
			ContentType: m.ContentType, Subject: m.Subject, Group: m.Group, Priority: m.Priority,
			ExpiresAt: utc(m.ExpiresAt), DeliverAt: utc(m.DeliverAt),
		},
	}
	if d := m.DeadLetter; d != nil {
		j.DeadLetter = &DeadLetter{
			Queue: d.Queue, Subscription: d.Subscription, Sequence: d.Sequence, Reason: d.Reason,
			Deliveries: d.Deliveries, MovedAt: d.MovedAt.UTC(),
		}
	}
	if len(m.Values) > 0 {
		j.TypedProperties = make(map[string]any, len(m.Values))
	}
	for k, v := range m.Values {
		j.TypedProperties[k] = typed(v)
	}
	switch {
	case !body:
	case utf8.Valid(m.Body):
		s := string(m.Body)
		j.Body = &s
	default:
		j.BodyBase64 = base64.StdEncoding.EncodeToString(m.Body)
	}
	return j
}

// utc converts t to UTC. It keeps the zero time unchanged, so that the field is omitted.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// typed returns v or, if JSON has no such value, a representation of v.
func typed(v any) any {
	switch v := v.(type) {
	case []byte:
		return map[string]string{"base64": base64.StdEncoding.EncodeToString(v)}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	}
	return v
}
