// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// gRPC reports the cause of a failed connection as text only. This file converts it into a message with a remedy.

var errUnreachable = errors.New("no node is reachable")

type dialError struct {
	why string // description
	// final: a retry fails in the same way in the current state of the network: nothing listens, the name does not
	// exist, or the two ends disagree about TLS.
	final bool
	// there: a process accepted the connection but closed it without a response.
	there bool
}

// dialErrorOf returns the cause of a failed connection. ok is false for other errors.
func dialErrorOf(message string) (o dialError, ok bool) {
	if !strings.HasPrefix(message, "connection error: ") {
		return dialError{}, false
	}
	cause := message
	if _, after, found := strings.Cut(message, `desc = "`); found {
		cause = strings.TrimSuffix(after, `"`)
	}
	has := func(s string) bool { return strings.Contains(cause, s) }
	switch {
	case has("connection refused"):
		return dialError{why: "connection refused: no process is listening", final: true}, true
	case has("no such host"):
		return dialError{why: "unknown host name", final: true}, true
	case has("first record does not look like a TLS handshake"):
		return mismatch("the node does not use TLS, and this client does: remove the certificates, or enable TLS " +
			"on the node. Or the port is not for clients, but for AMQP or the console"), true
	case has("certificate required"):
		return mismatch("the node requires a client certificate, and none is configured"), true
	case has("bad certificate"):
		return mismatch("the node rejects the client certificate: " + lastPart(cause)), true
	case has("x509: ") || has("tls: "):
		return mismatch("TLS: " + lastPart(cause)), true
	case has("HTTP/1.1 header"):
		return mismatch("a web server responds, such as the console or the metrics: it is not a port for clients"), true
	case has("missing selected ALPN property"):
		return mismatch("the server uses TLS, but not gRPC, such as AMQP: it is not a port for clients"), true
	case has("frame too large"): // a node with TLS closes the connection without sending a byte
		return mismatch("the server does not use gRPC, but, for example, AMQP: it is not a port for clients"), true
	case has("error reading server preface") && (has(net.ErrClosed.Error()) || has("deadline exceeded")):
		// This side closed it after the connection timeout.
		return dialError{why: "the process accepts connections and does not respond: it is stopped or hangs"}, true
	case has("error reading server preface"):
		// A node with TLS closes a plaintext connection.
		return mismatch("the node closes the connection immediately: it requires TLS, and this client does not use it: " +
			"set the CA of its certificate. Or the port is not for clients, but for AMQP or a raft voter"), true
	default:
		return dialError{why: lastPart(cause), there: has("reset by peer") || has("broken pipe") || has("EOF")}, true
	}
}

func mismatch(why string) dialError { return dialError{why: why, final: true, there: true} }

// lastPart returns the part after gRPC's own prefixes.
func lastPart(cause string) string {
	for _, words := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: "} {
		if _, after, found := strings.Cut(cause, words); found {
			cause = after
		}
	}
	return cause
}

func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%w: address %q is not host:port", ErrInvalid, address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%w: address %q: %s is not a port number between 1 and 65535", ErrInvalid, address, port)
	}
	return nil
}

// unreachable reports whether no node has ever responded and none is reachable now. mu is held.
func (l *locator) unreachable() bool {
	if !l.opts.FailFast || l.answered {
		return false
	}
	for _, n := range l.nodes {
		var e *Error
		if !errors.As(n.err, &e) || !e.final {
			return false
		}
	}
	return true
}

// learn adds the active node that a standby reports, if no known node is active. It waits until each known node has
// reported its role or is unreachable, since an address may be an alias of a known node. mu is held.
func (l *locator) learn() {
	if l.target != nil || l.opts.FixedAddresses {
		return
	}
	for _, n := range l.nodes {
		if n.observed == 0 {
			return
		}
	}
	for _, n := range l.nodes {
		if n.names != "" && n.err == nil {
			// An address that cannot be dialed is not fatal: the known nodes are still watched.
			_ = l.addLocked(n.names)
		}
	}
}

// refusal returns why no node serves this client: all reachable nodes reject its credentials. It is nil if a retry may
// succeed. mu is held.
func (l *locator) refusal() (why error) {
	for _, n := range l.nodes {
		switch {
		case n.asking, n.err == nil:
			return nil // it will report or has reported its role
		case !n.refused.IsZero():
			why = n.err
		}
	}
	return why
}

// askAgain retries nodes without a recent refusal: the access rules or the token may have changed in the meantime. mu
// is held.
func (l *locator) askAgain() (asked bool) {
	for _, n := range l.nodes {
		if n.refused.IsZero() || time.Since(n.refused) < tokenReread {
			continue
		}
		n.asking, asked = true, true
		signal(n.again)
	}
	return asked
}
