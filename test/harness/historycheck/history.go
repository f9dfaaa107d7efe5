// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Outcome is the result of a publish or another operation, as known to the client.
type Outcome string

// Outcomes.
const (
	// Acked means that the message is committed.
	Acked Outcome = "acked"
	// Unknown means that the error does not determine whether the message was committed.
	Unknown Outcome = "unknown"
	// Refused means that the error guarantees that the message was not committed.
	Refused Outcome = "refused"
)

// Publish is a published message and its outcome. Times are relative to the start of the history.
type Publish struct {
	ID       ID            `json:"id"`
	Queue    string        `json:"queue"`
	Sent     time.Duration `json:"sent_ns"`
	Done     time.Duration `json:"done_ns"`
	Outcome  Outcome       `json:"outcome"`
	Sequence uint64        `json:"sequence,omitempty"`
	// LSN is the LSN of the transaction that contains the message; 0 if unknown.
	LSN uint64 `json:"lsn,omitempty"`
	// Address is the address of the node that acknowledged the message.
	Address string `json:"address,omitempty"`
	// Term is the term of the node when it acknowledged the message; 0 if unknown.
	Term uint64 `json:"term,omitempty"`
	// Limit reports whether the message was rejected because of low disk space or a full queue.
	Limit bool `json:"limit,omitempty"`
	// Unordered reports whether the message may be committed after later messages of its producer, because the
	// producer did not wait for the response.
	Unordered bool `json:"unordered,omitempty"`
	// Group is the group of the message; "" if none.
	Group string `json:"group,omitempty"`
	// Error is the error message, unless Outcome is Acked.
	Error string `json:"error,omitempty"`
}

// Delivery is one message that a consumer received.
type Delivery struct {
	Queue    string        `json:"queue"`
	Sub      string        `json:"sub"`
	Sequence uint64        `json:"sequence"`
	ID       ID            `json:"id"`
	At       time.Duration `json:"at_ns"`
	// Stream is the number of the stream, or of the consumer of the client package, that received the message. If it
	// is 0, the order of deliveries is not checked.
	Stream uint64 `json:"stream,omitempty"`
	// Repeated reports whether the node marked the message as redelivered.
	Repeated bool `json:"repeated,omitempty"`
}

// Stream is a stream on which a node may deliver, from the consume request until the client detected the stream's
// end.
type Stream struct {
	Queue string        `json:"queue"`
	Sub   string        `json:"sub"`
	Began time.Duration `json:"began_ns"`
	// Ended is the time at which the stream ended; 0 if it has not ended.
	Ended time.Duration `json:"ended_ns,omitempty"`
}

// Ack is an acknowledgement that was sent by a consumer, or confirmed as committed.
type Ack struct {
	Queue     string        `json:"queue"`
	Sub       string        `json:"sub"`
	Sequence  uint64        `json:"sequence"`
	Confirmed time.Duration `json:"confirmed_ns,omitempty"`
	Sent      time.Duration `json:"sent_ns,omitempty"`
}

// Stored is a message that a queue contains at the end.
type Stored struct {
	Queue    string `json:"queue"`
	Sequence uint64 `json:"sequence"`
	ID       ID     `json:"id"`
}

// Digest is the content digest reported by one node.
type Digest struct {
	Node     string `json:"node"`
	LSN      uint64 `json:"lsn"`
	Content  string `json:"content"`
	Messages uint64 `json:"messages"`
}

// History is the record of a workload. Its methods are safe for concurrent use. Its fields may be read when all
// callers have finished.
type History struct {
	start time.Time

	mu         sync.Mutex // guards all fields below
	Publishes  []Publish
	Deliveries []Delivery
	// Streams are the streams of the consumers, including those without deliveries.
	Streams []Stream
	// AcksSent are the acknowledgements that consumers sent. Acks are the confirmed acknowledgements.
	AcksSent []Ack
	Acks     []Ack
	// Operations are the operations of the applications. Parts are the messages published by applications and side
	// clients.
	Operations []Operation
	Parts      []Publish
	// Left are the messages that remain unacknowledged at the end in the subscriptions consumed by applications. Exists
	// reports which queues created and deleted by applications exist.
	Left   []Left
	Exists map[string]bool
	// MaxUnknown is the maximum number of Publishes with an unknown outcome.
	MaxUnknown int
	// Calls counts calls of the applications, the side clients and the features, by labels such as "txn acked".
	Calls map[string]int
	// Final contains the messages in the queues after the workload has stopped, by sequence within each queue.
	// FinalRead reports whether Final was read.
	Final     []Stored
	FinalRead bool
	// Drained lists the subscriptions ("queue/sub") that were consumed to the end before Final was read.
	Drained []string
	Digests []Digest
	// Notes are the actions of the test, with their times, such as "kill a".
	Notes []string
	// PairOf returns the name of the pair of a node's address, or "" if it is unknown, in a fleet. Each pair has separate
	// LSNs. nil: all nodes belong to one pair.
	PairOf func(address string) string
	// Broken are violations detected during the workload, such as a corrupt body.
	Broken []Violation
}

// NewHistory creates an empty history that starts now.
func NewHistory() *History {
	return &History{start: time.Now(), Exists: map[string]bool{}, Calls: map[string]int{}}
}

// Now returns the time since the history started.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// Edit calls change with the lock held, to change fields that have no method.
func (h *History) Edit(change func(h *History)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// AddPublish records the outcome of a publish.
func (h *History) AddPublish(p Publish) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Publishes = append(h.Publishes, p)
}

// AddDelivery records a received message.
func (h *History) AddDelivery(d Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Deliveries = append(h.Deliveries, d)
}

// AddStream records the start of a stream. It returns a function that records its end.
func (h *History) AddStream(queue, sub string) (ended func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := len(h.Streams)
	h.Streams = append(h.Streams, Stream{Queue: queue, Sub: sub, Began: time.Since(h.start)})
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.Streams[i].Ended = time.Since(h.start)
	}
}

// AddAckSent records an acknowledgement that is about to be sent.
func (h *History) AddAckSent(a Ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.Sent = time.Since(h.start)
	h.AcksSent = append(h.AcksSent, a)
}

// AddAck records a confirmed acknowledgement.
func (h *History) AddAck(a Ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Acks = append(h.Acks, a)
}

// AddFinal records a message that a queue contains at the end.
func (h *History) AddFinal(s Stored) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Final = append(h.Final, s)
}

// AddBroken records a violation detected during the workload.
func (h *History) AddBroken(v Violation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Broken = append(h.Broken, v)
}

// Note records an action of the test.
func (h *History) Note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Notes = append(h.Notes, fmt.Sprintf("%12v %s", time.Since(h.start).Round(time.Microsecond),
		fmt.Sprintf(format, args...)))
}

// AckedAfter returns the time of the first acknowledgement received after the given time from a node other than the
// node at notBy. (Late responses of a killed node may still be received.)
func (h *History) AckedAfter(after time.Duration, notBy string) (at time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Records are ordered by Done, except for a few that were added concurrently, so continue the search a little further
	// back.
	late := 0
	for i := len(h.Publishes) - 1; i >= 0 && late < 1000; i-- {
		p := h.Publishes[i]
		if p.Done <= after {
			late++
		} else if p.Outcome == Acked && p.Address != notBy && (!ok || p.Done < at) {
			at, ok = p.Done, true
		}
	}
	return at, ok
}

// PublishesSoFar returns a copy of the publishes recorded so far.
func (h *History) PublishesSoFar() []Publish {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.Publishes)
}

// Counts returns the sizes of the history, for a test's log.
func (h *History) Counts() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	outcomes := map[Outcome]int{}
	for _, p := range h.Publishes {
		outcomes[p.Outcome]++
	}
	return fmt.Sprintf("%d published: %d acknowledged, %d unknown, %d rejected; %d delivered, %d acks confirmed; %d "+
		"stored; calls: %v",
		len(h.Publishes), outcomes[Acked], outcomes[Unknown], outcomes[Refused], len(h.Deliveries), len(h.Acks),
		len(h.Final), h.Calls)
}

// Save writes the history into dir, for analysis after a failure: one file of JSON lines for each kind of event.
func (h *History) Save(dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("save the history: %w", err)
	}
	return errors.Join(
		saveLines(filepath.Join(dir, "publishes.jsonl"), h.Publishes),
		saveLines(filepath.Join(dir, "deliveries.jsonl"), h.Deliveries),
		saveLines(filepath.Join(dir, "streams.jsonl"), h.Streams),
		saveLines(filepath.Join(dir, "acks-sent.jsonl"), h.AcksSent),
		saveLines(filepath.Join(dir, "acks.jsonl"), h.Acks),
		saveLines(filepath.Join(dir, "operations.jsonl"), h.Operations),
		saveLines(filepath.Join(dir, "parts.jsonl"), h.Parts),
		saveLines(filepath.Join(dir, "left.jsonl"), h.Left),
		saveLines(filepath.Join(dir, "final.jsonl"), h.Final),
		saveLines(filepath.Join(dir, "digests.jsonl"), h.Digests),
		saveLines(filepath.Join(dir, "notes.jsonl"), h.Notes),
		saveLines(filepath.Join(dir, "broken.jsonl"), h.Broken),
	)
}

func saveLines[T any](name string, events []T) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("save the history: %w", err)
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for i := range events {
		if err := enc.Encode(&events[i]); err != nil {
			return fmt.Errorf("save the history: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("save the history: %w", err)
	}
	return nil
}
