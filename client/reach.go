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

var errNobody = errors.New("no node answers")

type obstacle struct {
	why string // description
	// final: a retry fails in the same way in the current state of the network: nothing listens, the name does not
	// exist, or the two ends disagree about TLS.
	final bool
	// there: a process accepted the connection but closed it without a response.
	there bool
}

// dialErrorOf returns the cause of a failed connection. ok is false for other errors.
func whyUnreachable(message string) (o obstacle, ok bool) {
	if !strings.HasPrefix(message, "connection error: ") {
		return obstacle{}, false
	}
	cause := message
	if _, after, found := strings.Cut(message, `desc = "`); found {
		cause = strings.TrimSuffix(after, `"`)
	}
	has := func(s string) bool { return strings.Contains(cause, s) }
	switch {
	case has("connection refused"):
		return obstacle{why: "connection refused: no process listens there", final: true}, true
	case has("no such host"):
		return obstacle{why: "there is no host of that name", final: true}, true
	case has("first record does not look like a TLS handshake"):
		return disagreement("the node does not speak TLS, and this client does: leave the certificates away, or turn " +
			"TLS on at the node. Or the port is not for clients, such as that of AMQP or the console"), true
	case has("certificate required"):
		return disagreement("the node wants a client certificate, and none was shown"), true
	case has("bad certificate"):
		return disagreement("the node wants another client certificate: " + lastPart(cause)), true
	case has("x509: ") || has("tls: "):
		return disagreement("TLS: " + lastPart(cause)), true
	case has("HTTP/1.1 header"):
		return disagreement("a web server answers, such as the console or the metrics: it is not a port for clients"), true
	case has("missing selected ALPN property"):
		return disagreement("another protocol than gRPC answers with TLS, such as AMQP: it is not a port for clients"), true
	case has("frame too large"): // a node with TLS closes the connection without sending a byte
		return disagreement("another protocol than gRPC answers, such as AMQP: it is not a port for clients"), true
	case has("error reading server preface") && (has(net.ErrClosed.Error()) || has("deadline exceeded")):
		// This side closed it after the connection timeout.
		return obstacle{why: "the process there accepts connections and does not answer: it is stopped, or hangs"}, true
	case has("error reading server preface"):
		// A node with TLS closes a plaintext connection.
		return disagreement("the node ends the connection before it begins: it speaks TLS, and this client does not: " +
			"give the authority of its certificate. Or it is no port for clients, such as that of AMQP or of a raft voter"), true
	default:
		return obstacle{why: lastPart(cause), there: has("reset by peer") || has("broken pipe") || has("EOF")}, true
	}
}

func disagreement(why string) obstacle { return obstacle{why: why, final: true, there: true} }

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

// askAgain retries the nodes whose last refusal is not recent: the access rules or the token may have changed in the
// meantime. mu is held.
func (l *locator) askAgain() (asked bool) {
	for _, n := range l.nodes {
		if n.refused.IsZero() || time.Since(n.refused) < tokenReread {
			continue
		}
		n.asking, asked = true, true
		select {
		case n.again <- struct{}{}:
		default:
		}
	}
	return asked
}
