// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

// client is a connection to the serving node. Its links are recreated after a reconnect.
type client struct {
	request   request
	conn      *amqp.Conn
	session   *amqp.Session
	senders   map[string]*amqp.Sender
	links     map[string]*consumer
	temporary *amqp.Receiver
}

// consumer is a receiving link with its unsettled messages.
type consumer struct {
	request  request
	receiver *amqp.Receiver
	open     map[uint64]*amqp.Message
	count    uint64
}

// connect tries the addresses one after another until a connection is open, the credentials are rejected, or ctx is
// done.
func (c *client) connect(ctx context.Context) error {
	o, scheme, err := c.options()
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		err := c.connectTo(ctx, scheme+c.request.URLs[n%len(c.request.URLs)], o)
		if err == nil || denied(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// options returns the connection options and the URL scheme for the request.
func (c *client) options() (o *amqp.ConnOptions, scheme string, err error) {
	o, scheme = &amqp.ConnOptions{ContainerID: c.request.ClientID}, "amqp://"
	if c.request.TLS != "" {
		ca, err := os.ReadFile(c.request.TLS)
		if err != nil {
			return nil, "", err
		}
		scheme, o.TLSConfig = "amqps://", &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		o.TLSConfig.RootCAs.AppendCertsFromPEM(ca)
	}
	switch {
	case c.request.Cert != "":
		cert, err := tls.LoadX509KeyPair(c.request.Cert, c.request.Cert)
		if err != nil {
			return nil, "", err
		}
		o.TLSConfig.Certificates, o.SASLType = []tls.Certificate{cert}, amqp.SASLTypeExternal("")
	case c.request.User != "":
		o.SASLType = amqp.SASLTypePlain(c.request.User, c.request.Password)
	}
	return o, scheme, nil
}

// denied reports whether a node has rejected the client's credentials, so that a retry is useless. The library has no
// error type for a failed SASL exchange.
func denied(err error) bool {
	var conn *amqp.ConnError
	if errors.As(err, &conn) && conn.RemoteErr != nil {
		return conn.RemoteErr.Condition == amqp.ErrCondUnauthorizedAccess
	}
	return strings.Contains(err.Error(), "SASL")
}

// connectTo opens a connection and a session. The session detects a standby, which accepts a connection and then
// closes it.
func (c *client) connectTo(ctx context.Context, url string, o *amqp.ConnOptions) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := amqp.Dial(ctx, url, o)
	if err != nil {
		return err
	}
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	c.conn, c.session, c.senders = conn, session, map[string]*amqp.Sender{}
	return nil
}

// reconnect reconnects and recreates all receiving links, unless err is a rejection by the node. It reports whether
// it reconnected.
func (c *client) reconnect(ctx context.Context, err error) bool {
	var refused *amqp.Error
	if ctx.Err() != nil || errors.As(err, &refused) && !lost(err) {
		return false
	}
	_ = c.conn.Close()
	for ctx.Err() == nil {
		if c.connect(ctx) == nil && c.attachAll(ctx) == nil {
			return true
		}
	}
	return false
}

// lost reports whether err means that the connection, the session or the link was lost. It returns false if the node
// rejected the link.
func lost(err error) bool {
	var conn *amqp.ConnError
	var session *amqp.SessionError
	var link *amqp.LinkError
	if errors.As(err, &link) && link.RemoteErr != nil {
		condition := link.RemoteErr.Condition
		return condition == amqp.ErrCondConnectionForced || condition == amqp.ErrCondDetachForced
	}
	return errors.As(err, &conn) || errors.As(err, &session) || errors.As(err, &link)
}

func (c *client) attachAll(ctx context.Context) error {
	for _, k := range c.links {
		k.open = map[uint64]*amqp.Message{}
		if err := c.attach(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) sendAll(ctx context.Context, r *request) *reply {
	out := &reply{}
	for _, m := range r.Messages {
		got := outcome{Outcome: "accepted"}
		if err := c.send(ctx, r, m); err != nil {
			got = outcome{Outcome: "failed", Text: err.Error()}
		}
		out.Results = append(out.Results, got)
	}
	return out
}

// send sends a message, and retries after a lost connection, until the message is accepted or rejected, or ctx is
// done. All attempts have the same message ID.
func (c *client) send(ctx context.Context, r *request, m *messageForm) error {
	encoded := encode(m)
	for {
		err := c.sendOnce(ctx, r, encoded)
		if err == nil || !c.reconnect(ctx, err) {
			return err
		}
	}
}

func (c *client) sendOnce(ctx context.Context, r *request, m *amqp.Message) error {
	s := c.senders[r.To]
	if s == nil {
		var err error
		options := &amqp.SenderOptions{TargetCapabilities: []string{kind(r.Kind)}}
		if s, err = c.session.NewSender(ctx, r.To, options); err != nil {
			return err
		}
		c.senders[r.To] = s
	}
	return s.Send(ctx, m, nil)
}

func kind(k string) string {
	if k == "" {
		return "queue"
	}
	return k
}

func (c *client) attach(ctx context.Context, k *consumer) (err error) {
	r := &k.request
	o := &amqp.ReceiverOptions{Credit: 20, SourceCapabilities: []string{kind(r.Kind)}}
	if strings.HasPrefix(r.From, "$temporary") || c.temporary != nil && r.From == c.temporary.Address() {
		k.receiver = c.temporary
		return nil
	}
	if r.Selector != "" {
		o.Filters = append(o.Filters, amqp.NewSelectorFilter(r.Selector))
	}
	if r.NoLocal {
		o.Filters = append(o.Filters, amqp.NewLinkFilter("apache.org:no-local-filter:list", 0x0000468C00000003, []any{}))
	}
	if r.Shared {
		o.SourceCapabilities = append(o.SourceCapabilities, "shared")
	}
	if r.Durable != "" {
		o.Name, o.SourceDurability, o.SourceExpiryPolicy = r.Durable, amqp.DurabilityUnsettledState, amqp.ExpiryPolicyNever
		if r.Shared && r.Consumer != "k" {
			o.Name += "|" + r.Consumer // additional links of the subscription, as Qpid JMS names them
		}
	}
	k.receiver, err = c.session.NewReceiver(ctx, r.From, o)
	return err
}

// receive waits for a message, and reconnects if the connection is lost in the meantime. If no message arrives within
// timeout, the reply is empty.
func (c *client) receive(ctx context.Context, k *consumer, timeout time.Duration) (*reply, error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, timeout)
		m, err := k.receiver.Receive(waiting, nil)
		late := waiting.Err() != nil
		cancel()
		if err == nil {
			k.count++
			k.open[k.count] = m
			return &reply{Message: decode(m), Delivery: k.count}, nil
		}
		if late {
			return &reply{}, nil //nolint:nilerr // a timeout is a valid response
		}
		if !c.reconnect(ctx, err) {
			return nil, err
		}
	}
}

func (k *consumer) settle(ctx context.Context, delivery uint64, how string) error {
	m := k.open[delivery]
	if m == nil {
		return fmt.Errorf("delivery %d is not open: connection lost", delivery)
	}
	delete(k.open, delivery)
	switch how {
	case "accept":
		return k.receiver.AcceptMessage(ctx, m)
	case "release":
		return k.receiver.ReleaseMessage(ctx, m)
	case "reject":
		return k.receiver.RejectMessage(ctx, m, nil)
	case "fail":
		return k.receiver.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true})
	}
	return errors.New("unknown settlement: " + how)
}

// browse reads the available messages, at most 1000, until none arrives for 500 ms.
func (c *client) browse(ctx context.Context, r *request) (*reply, error) {
	o := &amqp.ReceiverOptions{Credit: -1, SourceDistributionMode: amqp.SourceDistributionModeCopy}
	b, err := c.session.NewReceiver(ctx, r.From, o)
	if err != nil {
		return nil, err
	}
	if err := b.IssueCredit(1000); err != nil {
		return nil, err
	}
	out := &reply{}
	for {
		waiting, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		m, err := b.Receive(waiting, nil)
		late := waiting.Err() != nil
		cancel()
		switch {
		case late:
			return out, b.Close(ctx)
		case err != nil:
			return nil, err
		}
		out.Messages = append(out.Messages, decode(m))
	}
}

// unsubscribe closes the link of a durable subscription, which deletes the subscription.
func (c *client) unsubscribe(ctx context.Context, durable string) error {
	for _, k := range c.links {
		if k.request.Durable == durable {
			return k.receiver.Close(ctx)
		}
	}
	return errors.New("subscription not found")
}

func encode(f *messageForm) *amqp.Message {
	m := &amqp.Message{
		Value: f.Body, Header: &amqp.MessageHeader{Durable: true, Priority: 4}, Properties: &amqp.MessageProperties{},
	}
	if f.Priority != nil {
		m.Header.Priority = *f.Priority
	}
	m.Header.TTL = time.Duration(f.TTL) * time.Millisecond
	m.Properties.MessageID = cmp.Or(f.MessageID, fmt.Sprintf("go-%d", time.Now().UnixNano()))
	for at, v := range map[**string]string{
		&m.Properties.Subject: f.Subject, &m.Properties.ReplyTo: f.ReplyTo, &m.Properties.GroupID: f.Group,
	} {
		if v != "" {
			*at = &v
		}
	}
	if f.CorrelationID != "" {
		m.Properties.CorrelationID = f.CorrelationID
	}
	if f.Delay > 0 {
		m.Annotations = amqp.Annotations{"x-opt-delivery-delay": f.Delay}
	}
	for k, v := range f.Properties {
		if m.ApplicationProperties == nil {
			m.ApplicationProperties = map[string]any{}
		}
		if n, ok := v.(float64); ok && n == math.Trunc(n) {
			v = int64(n)
		}
		m.ApplicationProperties[k] = v
	}
	return m
}

func decode(m *amqp.Message) *messageForm {
	f := &messageForm{Body: string(m.GetData()), Properties: m.ApplicationProperties}
	if s, ok := m.Value.(string); ok {
		f.Body = s
	}
	if m.Header != nil {
		f.Priority, f.DeliveryCount = &m.Header.Priority, m.Header.DeliveryCount
	}
	if p := m.Properties; p != nil {
		if p.MessageID != nil {
			f.MessageID = fmt.Sprint(p.MessageID)
		}
		if p.CorrelationID != nil {
			f.CorrelationID = fmt.Sprint(p.CorrelationID)
		}
		for at, v := range map[*string]*string{&f.Subject: p.Subject, &f.ReplyTo: p.ReplyTo, &f.Group: p.GroupID} {
			if v != nil {
				*at = *v
			}
		}
	}
	return f
}
