// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
)

// request is one line of the input. test/conformance/README.md lists the fields of each op.
type request struct {
	ID     uint64 `json:"id"`
	Op     string `json:"op"`
	Client string `json:"client"`

	Addresses      []string `json:"addresses"`
	FixedAddresses bool     `json:"fixed_addresses"`
	Token          string   `json:"token"`
	CA             string   `json:"ca"`
	Cert           string   `json:"cert"`
	Key            string   `json:"key"`

	Queue         string   `json:"queue"`
	Subscription  string   `json:"subscription"`
	Subscriptions []string `json:"subscriptions"`
	IfNotExists   bool     `json:"if_not_exists"`
	Config        config   `json:"config"`
	Limit         uint64   `json:"limit"`
	Newest        bool     `json:"newest"`
	TimeoutMS     int64    `json:"timeout_ms"`

	Producer   string    `json:"producer"`
	ProducerID string    `json:"producer_id"`
	Epoch      uint32    `json:"epoch"`
	Messages   []message `json:"messages"`

	Consumer string `json:"consumer"`
	Filter   string `json:"filter"`
	Prefetch int    `json:"prefetch"`
	Delivery uint64 `json:"delivery"`
	How      string `json:"how"`
	DelayMS  int64  `json:"delay_ms"`

	Publish []publication `json:"publish"`
	Ack     []held        `json:"ack"`
	Take    []held        `json:"take"`
}

// config is the configuration of a created queue.
type config struct {
	Priorities    bool   `json:"priorities"`
	MaxMessages   uint64 `json:"max_messages"`
	MaxDeliveries uint32 `json:"max_deliveries"`
	DeadLetter    string `json:"dead_letter"`
}

// publication is a transaction's publish to one queue.
type publication struct {
	Queue    string    `json:"queue"`
	Messages []message `json:"messages"`
}

// held identifies a delivery of a consumer.
type held struct {
	Consumer string `json:"consumer"`
	Delivery uint64 `json:"delivery"`
}

func (h held) key() string { return fmt.Sprintf("%s/%d", h.Consumer, h.Delivery) }

// message is used in both directions. Pad is the number of bytes "x" appended to the body of a published message;
// Size and SHA256 describe the whole body of a received message, and Body is truncated after 1,024 bytes.
type message struct {
	Body          string            `json:"body"`
	Pad           int               `json:"pad,omitempty"`
	Size          int               `json:"size,omitempty"`
	SHA256        string            `json:"sha256,omitempty"`
	Properties    map[string]string `json:"properties,omitempty"`
	MessageID     string            `json:"message_id,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	ReplyTo       string            `json:"reply_to,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Subject       string            `json:"subject,omitempty"`
	Group         string            `json:"group,omitempty"`
	Priority      *uint8            `json:"priority,omitempty"`
	TTLMS         int64             `json:"ttl_ms,omitempty"`
	DelayMS       int64             `json:"delay_ms,omitempty"`

	Sequence      uint64 `json:"sequence,omitempty"`
	DeliveryCount uint32 `json:"delivery_count,omitempty"`
	DeadLetterOf  string `json:"dead_letter_of,omitempty"`
}

// bodyShown is the maximum length of the returned part of a body.
const bodyShown = 1024

func toMessages(in []message) []client.Message {
	out := make([]client.Message, len(in))
	for i, m := range in {
		out[i] = client.Message{
			Body:       append([]byte(m.Body), bytes.Repeat([]byte("x"), m.Pad)...),
			Properties: m.Properties, MessageID: m.MessageID, CorrelationID: m.CorrelationID, ReplyTo: m.ReplyTo,
			ContentType: m.ContentType, Subject: m.Subject, Group: m.Group, Priority: m.Priority,
			TTL: time.Duration(m.TTLMS) * time.Millisecond, Delay: time.Duration(m.DelayMS) * time.Millisecond,
		}
	}
	return out
}

func fromStored(s client.Stored) message {
	sum := sha256.Sum256(s.Body)
	m := message{
		Body: string(s.Body[:min(len(s.Body), bodyShown)]), Size: len(s.Body), SHA256: hex.EncodeToString(sum[:]),
		Properties: s.Properties, MessageID: s.MessageID, CorrelationID: s.CorrelationID, ReplyTo: s.ReplyTo,
		ContentType: s.ContentType, Subject: s.Subject, Group: s.Group, Priority: s.Priority,
		Sequence: s.Sequence, DeliveryCount: s.DeliveryCount,
	}
	if s.DeadLetter != nil {
		m.DeadLetterOf = s.DeadLetter.Queue
	}
	return m
}
