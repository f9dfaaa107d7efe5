// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// ErrNoAnswer is returned when no node responds.
var ErrNoAnswer = errors.New("no node responds")

// Errors for a server that responds, but cannot be used as a node with the given TLS settings.
var (
	errNodeSpeaksTLS = errors.New("no node responds: the node requires TLS, but this command does not use it")
	errNodeIsPlain   = errors.New("no node responds: the node does not use TLS, but this command does")
	errCertificates  = errors.New("no node responds: the TLS handshake failed because a certificate was not accepted")
	errEnds          = errors.New("no node responds: the node closed the connection")
	errOtherPort     = errors.New("no node responds: the address is not the client port of a node")
)

// Values of client.Error.Reason if the connection failed.
const (
	tlsRequired    = "TLS_REQUIRED"
	tlsUnsupported = "TLS_UNSUPPORTED"
	badCertificate = "BAD_CERTIFICATE"
	notClientPort  = "NOT_CLIENT_PORT"
)

func connectReason(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Reason
	}
	return ""
}

// NoAnswer returns the error for a status without a response: ErrNoAnswer, or a more specific error if a server
// responds at one of the addresses, or denies access.
func NoAnswer(ctx context.Context, s pairstatus.Status) error {
	for _, n := range s.Nodes {
		if pairstatus.Refuses(n.Err) {
			return fmt.Errorf("no node allows this caller to read its status: %w", n.Err)
		}
		switch connectReason(n.Err) {
		case notClientPort:
			return fmt.Errorf("%w: %s", errOtherPort, strings.TrimPrefix(n.Error, "not a client port: "))
		case tlsRequired:
			if !speaksTLS(ctx, n.Address) {
				return fmt.Errorf("%w: the server at %s does not use gRPC", errOtherPort, n.Address)
			}
			return errNodeSpeaksTLS
		case tlsUnsupported:
			return errNodeIsPlain
		case badCertificate:
			return errCertificates
		}
		if strings.Contains(n.Error, "broken pipe") || strings.Contains(n.Error, "connection reset") {
			return fmt.Errorf("%w (%s)", errEnds, n.Error)
		}
	}
	return ErrNoAnswer
}

// speaksTLS reports whether a server responds to a TLS handshake. A server with another protocol sends bytes that are
// not a TLS record, or closes the connection. Other errors, such as no response within the timeout, count as TLS.
func speaksTLS(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, //nolint:gosec // no data is sent or used
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close() // nothing was sent
	}
	var other tls.RecordHeaderError
	return !errors.As(err, &other) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET)
}

const probeTimeout = 2 * time.Second

// Addresses returns the addresses of the nodes, host:port. It returns a usage error for an empty list.
func (env *Env) Addresses() ([]string, error) {
	c, err := env.Connection()
	if err != nil {
		return nil, err
	}
	return c.List()
}

// WithClient runs fn with a client, which it then closes. It is for commands on messages, queues and access rules: with
// two sites, the client uses the primary, even if --addr contains only addresses of the replica.
func (env *Env) WithClient(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	connection, err := env.Connection()
	if err != nil {
		return err
	}
	return env.With(ctx, connection, fn)
}

// WithPair is WithClient for commands that operate a pair and its nodes: the client uses the pair in --addr, which may
// be a replica. It returns a usage error if --addr contains nodes of several pairs.
func (env *Env) WithPair(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	connection, err := env.Connection()
	if err != nil {
		return err
	}
	return env.with(ctx, connection, true, func(ctx context.Context, c *client.Client) error {
		if err := env.onePair(ctx, c); err != nil {
			return err
		}
		return fn(ctx, c)
	})
}

// With is WithClient for the given connection.
func (env *Env) With(ctx context.Context, connection Connection, fn func(context.Context, *client.Client) error) error {
	return env.with(ctx, connection, false, fn)
}

func (env *Env) with(
	ctx context.Context, connection Connection, anySite bool, fn func(context.Context, *client.Client) error,
) error {
	o, err := connection.Options()
	if err != nil {
		return err
	}
	o.AnySite = anySite
	o.FailFast = !env.waitsForServer
	c, err := client.OpenWith(ctx, o)
	if errors.Is(err, client.ErrInvalid) {
		return Usage("invalid connection flags: %s", strings.TrimPrefix(err.Error(), client.ErrInvalid.Error()+": "))
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(ctx, c), c.Close())
}

// NodeAt returns the node at an address, host:port. It returns a usage error if the address is invalid.
func NodeAt(c *client.Client, address string) (*admin.Node, error) {
	n, err := admin.New(c).Node(address)
	if errors.Is(err, client.ErrInvalid) {
		return nil, Usage("invalid node address %q: must be host:port", address)
	}
	return n, err
}

// Nodes returns the nodes in --addr.
func (env *Env) Nodes(c *client.Client) ([]*admin.Node, error) {
	addrs, err := env.Addresses()
	if err != nil {
		return nil, err
	}
	nodes := make([]*admin.Node, len(addrs))
	for i, addr := range addrs {
		if nodes[i], err = NodeAt(c, addr); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// QueryEach calls query concurrently for each node. It returns the results and the joined errors, in the order of the
// nodes.
func QueryEach[T any](nodes []*admin.Node, query func(*admin.Node) (T, error)) ([]T, error) {
	results, failed := make([]T, len(nodes)), make([]error, len(nodes))
	var requests sync.WaitGroup
	for i, n := range nodes {
		requests.Go(func() { results[i], failed[i] = query(n) })
	}
	requests.Wait()
	return results, errors.Join(failed...)
}

// WaitActive waits until a node is active, for at most --timeout.
func (env *Env) WaitActive(ctx context.Context, c *client.Client) (client.Active, error) {
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	return c.WaitActive(ctx)
}

// WaitRates waits until the nodes have completed the rate measurement that a first request started.
func WaitRates(ctx context.Context) error {
	select {
	case <-time.After(1100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("measure rates: %w", context.Cause(ctx))
	}
}

// WithTimeout runs fn as WithClient does, with a context that ends after --timeout, which limits all requests of fn
// together.
func (env *Env) WithTimeout(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	return env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, env.Timeout)
		defer cancel()
		return fn(ctx, c)
	})
}

// WithPairTimeout is WithTimeout with a client of WithPair.
func (env *Env) WithPairTimeout(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	return env.WithPair(ctx, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, env.Timeout)
		defer cancel()
		return fn(ctx, c)
	})
}

// OnActive calls fn with the active node of the pair in --addr. It waits at most --timeout until a node is active.
func (env *Env) OnActive(ctx context.Context, fn func(context.Context, *admin.Node) error) error {
	return env.WithPair(ctx, env.onActive(fn))
}

// OnActiveOfSites is OnActive for requests that both sites serve: --addr can contain nodes of both sites.
func (env *Env) OnActiveOfSites(ctx context.Context, fn func(context.Context, *admin.Node) error) error {
	connection, err := env.Connection()
	if err != nil {
		return err
	}
	return env.with(ctx, connection, true, env.onActive(fn))
}

func (env *Env) onActive(fn func(context.Context, *admin.Node) error) func(context.Context, *client.Client) error {
	return func(ctx context.Context, c *client.Client) error {
		active, err := env.WaitActive(ctx, c)
		if err != nil {
			return err
		}
		n, err := NodeAt(c, active.Address)
		if err != nil {
			return err
		}
		return fn(ctx, n)
	}
}

// QueryNodes requests the status of all nodes concurrently, for at most timeout.
func (env *Env) QueryNodes(ctx context.Context, c *client.Client, timeout time.Duration) pairstatus.Status {
	addrs, err := env.Addresses()
	if err != nil {
		return pairstatus.Status{}
	}
	return pairstatus.QueryAll(ctx, c, addrs, timeout)
}

// NodeNamer returns a function that maps node IDs to names. For a node with an unknown name, the function returns the
// ID.
func (env *Env) NodeNamer(ctx context.Context, c *client.Client) func(string) string {
	s := env.QueryNodes(ctx, c, min(env.Timeout, time.Second))
	return s.NodeName
}
