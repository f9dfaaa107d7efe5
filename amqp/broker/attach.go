// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Capabilities of sources and targets.
const (
	capTopic          wire.Symbol = "topic"
	capTemporaryTopic wire.Symbol = "temporary-topic"
	capShared         wire.Symbol = "shared"
	capGlobal         wire.Symbol = "global"
)

const callLimit = 15 * time.Second // timeout of calls for queues and subscriptions, and of waits for a pair

// attached responds to an attach of the client. Calls to the node run in a separate goroutine. mu is held.
func (c *conn) attached(l *session.Link) {
	a := l.Peer()
	if l.Sender() {
		c.leaveWith(l, func(ctx context.Context) (func(), error) { return c.attachSource(ctx, l, a) })
		return
	}
	switch target := a.Target.(type) {
	case *wire.Coordinator:
		c.attachCoordinator(l)
	case *wire.Node:
		c.leaveWith(l, func(ctx context.Context) (func(), error) { return c.attachTarget(ctx, l, a, target) })
	default:
		l.Refuse(session.Errorf(session.InvalidField, "attach has no target"))
	}
}

// maxCreating limits the links in creation. Above this limit, the connection is not read.
const maxCreating = 32

// leaveWith runs begin in a separate goroutine without mu, and then, with mu, the function that begin returns. If
// begin fails, the link is refused. If it fails because the node is not active, the connection is closed instead. mu
// is held.
func (c *conn) leaveWith(l *session.Link, begin func(context.Context) (func(), error)) {
	c.creating++
	c.run(func() {
		ctx, cancel := context.WithTimeout(c.calls, callLimit)
		defer cancel()
		accept, err := begin(ctx)
		lost := err != nil && isNotActive(err)
		if lost {
			c.lost("this node is no longer active")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.creating--
		c.room.Broadcast()
		switch {
		case lost: // the connection ends without a response
		case err != nil:
			l.Refuse(refusal(err))
		default:
			accept()
		}
		c.handleEvents()
		c.signal()
	})
}

func isNotActive(err error) bool {
	f := failed(err)
	return f.notActive()
}

// address returns the address of a source or target, "" for null; false if it is not a string or symbol.
func address(a any) (string, bool) {
	switch a := a.(type) {
	case nil:
		return "", true
	case string:
		return a, true
	case wire.Symbol:
		return string(a), true
	}
	return "", false
}

var errAddress = session.Errorf(session.InvalidField, "address must be a string: a queue name")

func isTopic(capabilities []wire.Symbol) bool {
	return slices.Contains(capabilities, capTopic) || slices.Contains(capabilities, capTemporaryTopic)
}

func (c *conn) attachTarget(
	ctx context.Context, l *session.Link, a *wire.Attach, target *wire.Node,
) (accept func(), err error) {
	name, ok := address(target.Address)
	reply := session.Reply{Target: target}
	exists := target.Dynamic
	switch {
	case !ok:
		return nil, errAddress
	case target.Dynamic:
		if name, err = c.createDynamic(ctx, isTopic(target.Capabilities)); err != nil {
			return nil, err
		}
		own := *target
		own.Address = name
		reply.Target = &own
	case name != "":
		if exists, err = c.ensureQueue(ctx, name, isTopic(target.Capabilities)); err != nil {
			return nil, err
		}
	}
	reply.OfferedCapabilities = offered(a.DesiredCapabilities, delayedDelivery)
	return func() {
		p := &publisher{c: c, link: l, queue: name, topic: isTopic(target.Capabilities), exists: exists}
		if target.Dynamic {
			p.dynamic = name
			c.nodes = append(c.nodes, name)
		}
		l.Data = p
		if l.Accept(reply) {
			l.Window(publishWindow)
		}
	}, nil
}

func offered(desired []wire.Symbol, has ...wire.Symbol) (list []wire.Symbol) {
	for _, d := range desired {
		if slices.Contains(has, d) {
			list = append(list, d)
		}
	}
	return list
}

// ensureQueue creates a missing queue if automatic creation is enabled, and reports whether the queue is known to
// exist. Without automatic creation, or without the permission to query the queue, it returns false.
func (c *conn) ensureQueue(ctx context.Context, name string, topic bool) (exists bool, err error) {
	if !c.server.o.AutoCreate() {
		return false, nil
	}
	if _, err := c.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: name}); err == nil {
		return true, nil
	} else if f := failed(err); f.reason != "QUEUE_NOT_FOUND" {
		if f.reason == "DENIED" {
			return false, nil // publish and consume may be allowed
		}
		return false, err
	}
	return true, c.createQueue(ctx, name, topic)
}

func (c *conn) createQueue(ctx context.Context, name string, topic bool) error {
	_, err := c.queues.CreateQueue(ctx, &pb.CreateQueueRequest{
		Name: name, Config: &pb.QueueConfig{}, Topic: topic, IfNotExists: true,
	})
	if err == nil {
		return nil
	}
	if f := failed(err); f.reason == "DENIED" {
		return session.Errorf(session.NotFound, "queue %q not found and not created automatically: %s", name, f.text)
	}
	return err
}

func (c *conn) attachSource(ctx context.Context, l *session.Link, a *wire.Attach) (accept func(), err error) {
	source := a.Source
	if source == nil {
		return c.recoverSubscription(ctx, l, a)
	}
	name, ok := address(source.Address)
	if !ok {
		return nil, errAddress
	}
	own := *source
	var dynamic string
	switch {
	case source.Dynamic:
		if dynamic, err = c.createDynamic(ctx, isTopic(source.Capabilities)); err != nil {
			return nil, err
		}
		name = dynamic
		own.Address = name
	case name == "":
		return nil, session.Errorf(session.InvalidField, "source has no address (queue name)")
	}
	filters, err := readFilters(source.Filter)
	if err != nil {
		return nil, err
	}
	own.Filter = filters.known
	if source.DistributionMode == "copy" && !isTopic(source.Capabilities) { // JMS subscriptions also use copy
		return c.attachBrowser(ctx, l, name, &own, filters)
	}
	own.DistributionMode = "move"
	if !source.Dynamic {
		if _, err := c.ensureQueue(ctx, name, isTopic(source.Capabilities)); err != nil {
			return nil, err
		}
	}
	s := newConsumer(c, l, name)
	s.dynamic = dynamic
	switch {
	case isTopic(source.Capabilities):
		if err := c.subscribe(ctx, s, a, filters); err != nil {
			s.discard()
			return nil, err
		}
	case filters.noLocal:
		s.discard()
		return nil, session.Errorf(session.NotImplemented, "no-local filter requires a topic: no other consumer would "+
			"receive the excluded messages of a queue")
	default:
		s.filter = filters.cel
	}
	return func() {
		if dynamic != "" {
			c.nodes = append(c.nodes, dynamic)
		}
		if l.Gone() { // the client has detached in the meantime
			s.withdraw()
			return
		}
		l.Data = s
		s.reply = session.Reply{Source: &own, Target: a.Target}
		s.start()
	}, nil
}

// cleanName converts text to a valid queue or subscription name. Each character becomes an x, its hexadecimal code
// point and a dot, except ASCII letters and digits and, after the first character, hyphens, underscores and dots.
func cleanName(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9',
			i > 0 && (r == '-' || r == '_' || r == '.'):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "x%X.", r)
		}
	}
	return b.String()
}
