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

// This file puts what gRPC says of a connection that could not be made into words for the person who has to mend it.
// gRPC tells it in text only.

// errNobody is why a client with Options.FailFast gives up.
var errNobody = errors.New("no node answers")

// obstacle is why there is no connection.
type obstacle struct {
	why string // in words
	// final: another attempt, in this state of the network, can only end alike. Nothing listens there, the name does not
	// exist, or the two ends disagree about TLS.
	final bool
	// there: a process is there, and the connection was ended all the same before it answered anything.
	there bool
}

// whyUnreachable tells why there is no connection. ok is false for anything else than a failed connection.
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
	case has("frame too large"): // a node with TLS ends the connection without a byte
		return disagreement("another protocol than gRPC answers, such as AMQP: it is not a port for clients"), true
	case has("error reading server preface") && (has(net.ErrClosed.Error()) || has("deadline exceeded")):
		// This side has ended it: it waited for so long as a connection may take.
		return obstacle{why: "the process there accepts connections and does not answer: it is stopped, or hangs"}, true
	case has("error reading server preface"):
		// A node with TLS ends a connection that begins without.
		return disagreement("the node ends the connection before it begins: it speaks TLS, and this client does not: " +
			"give the authority of its certificate. Or it is no port for clients, such as that of AMQP or of a raft voter"), true
	default:
		return obstacle{why: lastPart(cause), there: has("reset by peer") || has("broken pipe") || has("EOF")}, true
	}
}

func disagreement(why string) obstacle { return obstacle{why: why, final: true, there: true} }

// lastPart is what comes after gRPC's own words.
func lastPart(cause string) string {
	for _, words := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: "} {
		if _, after, found := strings.Cut(cause, words); found {
			cause = after
		}
	}
	return cause
}

// checkAddress tells whether an address can be dialled at all.
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

// unreachable tells whether no node has ever answered, and none can at the moment. The caller holds mu.
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

// learn makes the active known that a standby names, if no known node is active. It waits until each known node has
// said what it is, or could not be reached: an address may be another name of one of them. The caller holds mu.
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
			// One that cannot be dialled is no reason to fail: the known ones go on being watched.
			_ = l.addLocked(n.names)
		}
	}
}

// refusal is why no node serves this client: all that can be reached refuse what it shows. It is nil if another attempt
// may end otherwise. The caller holds mu.
func (l *locator) refusal() (why error) {
	for _, n := range l.nodes {
		switch {
		case n.asking, n.err == nil:
			return nil // it will say, or has said, what it is
		case !n.refused.IsZero():
			why = n.err
		}
	}
	return why
}

// askAgain has the nodes asked once more, if the last refusal is not of this moment: the pair's rules, or the token,
// may have changed since. The caller holds mu.
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
