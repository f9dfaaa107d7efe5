// SPDX-License-Identifier: Apache-2.0

package out

import (
	"encoding/base64"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Position names a log record.
type Position struct {
	Term  uint64 `json:"term"`
	LSN   uint64 `json:"lsn"`
	Chain string `json:"chain"`
}

// NewPosition makes it of a position.
func NewPosition(p lsn.Position) Position {
	return Position{Term: p.Term, LSN: p.LSN, Chain: fmt.Sprintf("%08x", p.Chain)}
}

// Message is a message for programs.
type Message struct {
	Queue         string            `json:"queue"`
	Sequence      uint64            `json:"sequence"`
	PublishedAt   time.Time         `json:"published_at"`
	DeliveryCount uint32            `json:"delivery_count"`
	Properties    map[string]string `json:"properties,omitempty"`
	// Body, if it is valid UTF-8; else BodyBase64.
	Body       *string `json:"body,omitempty"`
	BodyBase64 string  `json:"body_base64,omitempty"`
}

// NewMessage makes it of a message that was read. body: with its body.
func NewMessage(queue string, m client.Stored, body bool) Message {
	j := Message{
		Queue: queue, Sequence: m.Sequence, PublishedAt: m.PublishedAt.UTC(), DeliveryCount: m.DeliveryCount,
		Properties: m.Properties,
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
