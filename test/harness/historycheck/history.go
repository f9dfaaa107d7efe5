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

// Outcome is what a publisher was told about a message.
type Outcome string

// The outcomes of a publish.
const (
	// Acked: the message is committed.
	Acked Outcome = "acked"
	// Unknown: an error that leaves open whether the message was committed.
	Unknown Outcome = "unknown"
	// Refused: an error that promises that it was not.
	Refused Outcome = "refused"
)

// Publish is one message that was sent, and what came of it. Times count from the beginning of the history.
type Publish struct {
	ID       ID            `json:"id"`
	Queue    string        `json:"queue"`
	Sent     time.Duration `json:"sent_ns"`
	Done     time.Duration `json:"done_ns"`
	Outcome  Outcome       `json:"outcome"`
	Sequence uint64        `json:"sequence,omitempty"`
	// LSN of the transaction that holds the message; 0 when it is not known.
	LSN uint64 `json:"lsn,omitempty"`
	// Address of the node that acknowledged it.
	Address string `json:"address,omitempty"`
	// Term of the pair that the node was in when it acknowledged it; 0 when it is not known.
	Term uint64 `json:"term,omitempty"`
	// Limit: it was refused because the disk is low or the queue is full.
	Limit bool `json:"limit,omitempty"`
	// Unordered: it may be committed after what its producer sent later, since the producer did not wait for the
	// answer.
	Unordered bool `json:"unordered,omitempty"`
	// Group of the message, whose messages are delivered in order; "" if it has none.
	Group string `json:"group,omitempty"`
	// Error in words, unless acked.
	Error string `json:"error,omitempty"`
}

// Delivery is one message that a consumer received.
type Delivery struct {
	Queue    string        `json:"queue"`
	Sub      string        `json:"sub"`
	Sequence uint64        `json:"sequence"`
	ID       ID            `json:"id"`
	At       time.Duration `json:"at_ns"`
	// Stream is the number of the consumer that it came to; 0 when it does not matter. One of the client package has one
	// stream after another.
	Stream uint64 `json:"stream,omitempty"`
	// Repeated: the node says that it was given back before.
	Repeated bool `json:"repeated,omitempty"`
}

// Stream is one stream on which a node may deliver, from when it was asked for until it was known to have ended.
type Stream struct {
	Queue string        `json:"queue"`
	Sub   string        `json:"sub"`
	Began time.Duration `json:"began_ns"`
	// Ended is 0 for one that did not.
	Ended time.Duration `json:"ended_ns,omitempty"`
}

// Ack is one acknowledgement: of those that a consumer sent, or of those that it was told are committed.
type Ack struct {
	Queue     string        `json:"queue"`
	Sub       string        `json:"sub"`
	Sequence  uint64        `json:"sequence"`
	Confirmed time.Duration `json:"confirmed_ns,omitempty"`
	Sent      time.Duration `json:"sent_ns,omitempty"`
}

// Stored is one message that a queue holds at the end.
type Stored struct {
	Queue    string `json:"queue"`
	Sequence uint64 `json:"sequence"`
	ID       ID     `json:"id"`
}

// Digest is what one node says its content is.
type Digest struct {
	Node     string `json:"node"`
	LSN      uint64 `json:"lsn"`
	Content  string `json:"content"`
	Messages uint64 `json:"messages"`
}

// History is all that a workload saw. Its methods may be called from many goroutines; its fields are for the checker,
// when all of them are done.
type History struct {
	start time.Time

	mu         sync.Mutex // guards all below
	Publishes  []Publish
	Deliveries []Delivery
	// Streams are those that the consumers began, also those that brought nothing.
	Streams []Stream
	// AcksSent are the acknowledgements that consumers sent, Acks those that were confirmed.
	AcksSent []Ack
	Acks     []Ack
	// Operations are what the applications did, and Parts the messages that they and the strays published.
	Operations []Operation
	Parts      []Publish
	// Left is what the subscriptions that applications consume have still to acknowledge at the end, and Exists which
	// of the queues that they make and delete are there.
	Left   []Left
	Exists map[string]bool
	// MaxUnknown is how many of Publishes may have an unknown outcome.
	MaxUnknown int
	// Calls counts the calls of the applications, by kind and outcome.
	Calls map[string]int
	// Final is what the queues hold after quiesce, each in order of sequence. FinalRead tells that it was read.
	Final     []Stored
	FinalRead bool
	// Drained lists the subscriptions ("queue/sub") that were consumed to the end before Final was read.
	Drained []string
	Digests []Digest
	// Notes are what the test did and when ("kill a").
	Notes []string
	// Broken are violations that were seen as they happened, such as a damaged body.
	Broken []Violation
}

// NewHistory begins an empty history, now.
func NewHistory() *History {
	return &History{start: time.Now(), Exists: map[string]bool{}, Calls: map[string]int{}}
}

// Now is the time since the history began.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// Edit changes what has no method of its own.
func (h *History) Edit(change func(h *History)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// AddPublish records what came of a publish.
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

// AddStream records the beginning of a stream. It returns what records its end.
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

// AddFinal records what a queue holds at the end.
func (h *History) AddFinal(s Stored) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Final = append(h.Final, s)
}

// AddBroken records a violation that was seen as it happened.
func (h *History) AddBroken(v Violation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Broken = append(h.Broken, v)
}

// Note records what the test did.
func (h *History) Note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Notes = append(h.Notes, fmt.Sprintf("%12v %s", time.Since(h.start).Round(time.Microsecond),
		fmt.Sprintf(format, args...)))
}

// AckedAfter finds the first acknowledgement of a publish that was received after the given time, from another node
// than the one at address notBy: what a node said before it was killed may still be on its way.
func (h *History) AckedAfter(after time.Duration, notBy string) (at time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Records are in order of Done, but for a few that overtook each other on the way here: look a little further back.
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

// PublishesSoFar copies what is known of publishes by now.
func (h *History) PublishesSoFar() []Publish {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.Publishes)
}

// Counts says how much is in the history, for a test's log.
func (h *History) Counts() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	outcomes := map[Outcome]int{}
	for _, p := range h.Publishes {
		outcomes[p.Outcome]++
	}
	return fmt.Sprintf("%d published: %d acknowledged, %d unknown, %d refused; %d delivered, %d acks confirmed; %d "+
		"stored; calls: %v",
		len(h.Publishes), outcomes[Acked], outcomes[Unknown], outcomes[Refused], len(h.Deliveries), len(h.Acks),
		len(h.Final), h.Calls)
}

// Save writes the history into dir, one file of JSON lines for each kind of event, to be read after a failure.
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
