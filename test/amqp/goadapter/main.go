// SPDX-License-Identifier: Apache-2.0

// Command goadapter is the adapter of Azure/go-amqp for the cases of test/amqp. It reads requests as lines of JSON;
// see ../README.md. The library supports neither transactions nor reconnecting; links.go reconnects, as an
// application would.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

// request is one line from the runner.
type request struct {
	ID       uint64         `json:"id"`
	Op       string         `json:"op"`
	Client   string         `json:"client"`
	Session  string         `json:"session"`
	URLs     []string       `json:"urls"`
	ClientID string         `json:"client_id"`
	User     string         `json:"user"`
	Password string         `json:"password"`
	TLS      string         `json:"tls"`
	Cert     string         `json:"certificate"`
	To       string         `json:"to"`
	From     string         `json:"from"`
	Kind     string         `json:"kind"`
	Durable  string         `json:"durable"`
	Name     string         `json:"name"`
	Shared   bool           `json:"shared"`
	NoLocal  bool           `json:"no_local"`
	Selector string         `json:"selector"`
	Consumer string         `json:"consumer"`
	Delivery uint64         `json:"delivery"`
	How      string         `json:"how"`
	Timeout  int64          `json:"timeout_ms"`
	Messages []*messageForm `json:"messages"`
}

// messageForm is the JSON form of a message.
type messageForm struct {
	Body          string         `json:"body"`
	MessageID     string         `json:"message_id"`
	CorrelationID string         `json:"correlation_id"`
	Subject       string         `json:"subject"`
	Group         string         `json:"group"`
	ReplyTo       string         `json:"reply_to"`
	Priority      *uint8         `json:"priority"`
	DeliveryCount uint32         `json:"delivery_count"`
	TTL           int64          `json:"ttl_ms,omitempty"`
	Delay         int64          `json:"delay_ms,omitempty"`
	Properties    map[string]any `json:"properties"`
}

// outcome is the result of a sent message.
type outcome struct {
	Outcome string `json:"outcome"`
	Text    string `json:"text,omitempty"`
}

// reply contains the fields of all kinds of responses.
type reply struct {
	Results  []outcome      `json:"results,omitempty"`
	Messages []*messageForm `json:"messages,omitempty"`
	Message  *messageForm   `json:"message,omitempty"`
	Delivery uint64         `json:"delivery,omitempty"`
	Address  string         `json:"address,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// program manages the connections.
type program struct {
	mu      sync.Mutex // guards clients and the output
	clients map[string]*client
}

func run() error {
	p := &program{clients: map[string]*client{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	last := map[string]chan struct{}{} // by client: closed when its latest request is done
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		before, done := last[r.Client], make(chan struct{})
		last[r.Client] = done
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			p.answer(&r)
		}()
	}
	return lines.Err()
}

func (p *program) answer(r *request) {
	got, err := p.perform(r)
	line := map[string]any{"id": r.ID, "ok": got}
	if err != nil {
		line = map[string]any{"id": r.ID, "error": map[string]string{"message": err.Error()}}
	}
	b, err := json.Marshal(line)
	if err != nil {
		b = []byte(err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = os.Stdout.Write(append(b, '\n'))
}

func (p *program) perform(r *request) (any, error) {
	if r.Op == "can" {
		return []string{
			"browse", "durable", "shared", "selector", "delay", "answer", "no-local", "temporary", "follow", "resend",
		}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p.mu.Lock()
	c := p.clients[r.Client]
	p.mu.Unlock()
	switch {
	case r.Op == "open":
		c = &client{request: *r, links: map[string]*consumer{}, senders: map[string]*amqp.Sender{}}
		if err := c.connect(ctx); err != nil {
			return nil, err
		}
		p.mu.Lock()
		p.clients[r.Client] = c
		p.mu.Unlock()
		return &reply{}, nil
	case c == nil:
		return nil, fmt.Errorf("no client %q", r.Client)
	}
	return c.perform(ctx, r)
}

func (c *client) perform(ctx context.Context, r *request) (*reply, error) {
	switch r.Op {
	case "close":
		return &reply{}, c.conn.Close()
	case "send":
		return c.sendAll(ctx, r), nil
	case "consume":
		k := &consumer{request: *r, open: map[uint64]*amqp.Message{}}
		c.links[r.Consumer] = k
		return &reply{}, c.attach(ctx, k)
	case "receive":
		return c.receive(ctx, c.links[r.Consumer], time.Duration(r.Timeout)*time.Millisecond)
	case "answer":
		return &reply{}, c.links[r.Consumer].settle(ctx, r.Delivery, r.How)
	case "browse":
		return c.browse(ctx, r)
	case "consumer_close":
		k := c.links[r.Consumer]
		if k.request.Durable != "" {
			return &reply{}, nil // the library closes links, which would delete the subscription
		}
		return &reply{}, k.receiver.Close(ctx)
	case "unsubscribe":
		return &reply{}, c.unsubscribe(ctx, r.Durable)
	case "temporary":
		receiver, err := c.session.NewReceiver(ctx, "", &amqp.ReceiverOptions{
			DynamicAddress: true, SourceCapabilities: []string{"temporary-queue"}, Credit: 10,
		})
		if err != nil {
			return nil, err
		}
		c.temporary = receiver
		return &reply{Address: receiver.Address()}, nil
	}
	return nil, errors.New("unknown op: " + r.Op)
}
