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

// errUnreachable is the cause of the error of a call that fails because of Options.FailFast.
var errUnreachable = errors.New("no node responds")

// dialError is the cause of a failed connection.
type dialError struct {
	why    string // description
	reason string // Error.Reason; may be empty
	// final means that a retry fails in the same way until something changes: nothing listens, the name does not exist, or
	// the server uses other TLS settings or another protocol.
	final bool
	// accepted means that a process accepted the connection, but the connection ended or the handshake failed.
	accepted bool
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
		return dialError{why: "connection refused: no process listens on this port", final: true}, true
	case has("no such host"):
		return dialError{why: "no such host", final: true}, true
	case has("first record does not look like a TLS handshake"):
		return mismatch("TLS_UNSUPPORTED", "the node does not use TLS, but this client does: remove the TLS options, "+
			"or enable TLS on the node. The port may also belong to another service, such as AMQP or the console"), true
	case has("certificate required"):
		return mismatch("BAD_CERTIFICATE", "the node requires a client certificate"), true
	case has("bad certificate"):
		return mismatch("BAD_CERTIFICATE", "the node rejected the client certificate: "+lastPart(cause)), true
	case has("x509: ") || has("tls: "):
		return mismatch("BAD_CERTIFICATE", "TLS handshake failed: "+lastPart(cause)), true
	case has("HTTP/1.1 header"):
		return mismatch("NOT_CLIENT_PORT", "not a client port: an HTTP server responds, such as the console or the "+
			"metrics"), true
	case has("missing selected ALPN property"):
		return mismatch("NOT_CLIENT_PORT", "not a client port: a server with TLS responds, but not with gRPC, such as "+
			"AMQP"), true
	case has("frame too large"): // a node with TLS closes the connection without sending a byte
		return mismatch("NOT_CLIENT_PORT", "not a client port: a server responds, but not with gRPC, such as AMQP"), true
	case has("error reading server preface") && (has(net.ErrClosed.Error()) || has("deadline exceeded")):
		// The client closed the connection after the connection timeout.
		return dialError{why: "a process accepts connections, but does not respond: it is stopped or hangs"}, true
	case has("error reading server preface"):
		// A node with TLS closes a plaintext connection.
		return mismatch("TLS_REQUIRED", "the node closed the connection: it requires TLS, and this client does not use "+
			"it: set the CA of its certificate. The port may also belong to AMQP or a Raft voter"), true
	default:
		return dialError{why: lastPart(cause), accepted: has("reset by peer") || has("broken pipe") || has("EOF")}, true
	}
}

func mismatch(reason, why string) dialError {
	return dialError{why: why, reason: reason, final: true, accepted: true}
}

// lastPart returns cause without gRPC's own prefixes.
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

// unreachable reports whether a call must fail with FailFast: no node has responded since Open, and all nodes are
// known to be unreachable. mu is held.
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

// learn adds the addresses of the other site, unless Options.AnySite is set. If no known node is active, it also adds
// the active node that a standby reports. It does nothing with Options.FixedAddresses, nor before each known node has
// reported its role or a connection error. mu is held.
func (l *locator) learn() {
	if l.opts.FixedAddresses {
		return
	}
	for _, n := range l.nodes {
		if n.observed == 0 {
			return
		}
	}
	for _, n := range l.nodes {
		if n.err != nil {
			continue
		}
		if l.target == nil {
			l.learnAddress(n.names)
		}
		if l.opts.AnySite {
			continue
		}
		for _, a := range n.site.GetRemoteAddresses() {
			l.learnAddress(a)
		}
	}
}

// learnAddress adds an address that a node reports. It ignores an empty or invalid address. mu is held.
func (l *locator) learnAddress(address string) {
	if checkAddress(address) == nil {
		// An address that cannot be dialed is not fatal: the known nodes are still watched.
		_ = l.addLocked(address)
	}
}

// refusal returns the error of a node if all reachable nodes reject the credentials of this client, and no retry is
// in progress. Otherwise, it returns nil. mu is held.
func (l *locator) refusal() (why error) {
	for _, n := range l.nodes {
		switch {
		case n.asking, n.err == nil:
			return nil // the node will report or has reported its role
		case !n.refused.IsZero():
			why = n.err
		}
	}
	return why
}

// askAgain triggers a retry of the nodes that refused the client at least tokenReread ago, and reports whether there
// are any such nodes. The access rules or the token may have changed since the refusal. mu is held.
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
