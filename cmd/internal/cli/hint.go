// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/store/datadir"
)

// hint adds two checks to the function hint. It checks whether a process that closes connections speaks TLS. It names
// the variable to rename if the environment still has one that configured this command until release 0.1 and is a node
// setting now.
func (env *Env) hint(ctx context.Context, err error) string {
	next := hint(err)
	if !strings.Contains(next, "--tls-") {
		return next
	}
	if addresses, addrErr := env.Addresses(); addrErr == nil &&
		strings.Contains(err.Error(), "it speaks TLS, and this client does not") &&
		!slices.ContainsFunc(addresses, func(at string) bool { return speaksTLS(ctx, at) }) {
		return hint(errOtherPort)
	}
	for _, name := range [...]string{envTLSCA, envTLSCert, envTLSKey} {
		former := strings.Replace(name, "_CLIENT", "", 1)
		_, set := env.Lookup(former)
		if _, now := env.Lookup(name); set && !now {
			return former + " is a setting of the node and is not read here: set " + name + "; " + next
		}
	}
	return next
}

// hint returns advice for an error; empty if there is no advice, or if the error contains it.
func hint(err error) string {
	text := err.Error()
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, client.ErrUnauthenticated):
		return "lockstep login gets or keeps a token; --token-file names one"
	case errors.Is(err, client.ErrDenied):
		return "lockstep access whoami tells whom the node takes you for, and what that one may do"
	case errors.Is(err, client.ErrSubscriptionNotFound):
		return "lockstep subscription list shows the subscriptions, lockstep subscription create makes one"
	case errors.Is(err, client.ErrQueueNotFound):
		return "lockstep queue list shows the queues, lockstep queue create makes one"
	case errors.Is(err, client.ErrNotEmpty):
		return "lockstep queue show tells what is in it, lockstep queue purge drops that"
	case errors.Is(err, client.ErrNoTransaction):
		return "lockstep txn list shows those that wait for a decision"
	case errors.Is(err, datadir.ErrInUse):
		return "lockstep status tells what the node that runs there knows"
	case errors.Is(err, datadir.ErrNone), errors.Is(err, fs.ErrNotExist) && says(datadir.PageFileName):
		return "data.dir in the node's configuration names the directory: lockstep doctor --config node.yaml"
	case errors.Is(err, errOtherPort), says("it is not a port for clients"):
		return "--addr names the port for clients, the setting listen of a node; the console, metrics, AMQP and raft have " +
			"ports of their own"
	case errors.Is(err, errNodeSpeaksTLS), says("it speaks TLS, and this client does not"):
		return "--tls-ca ca.pem names the authority of the node's certificate (" + envTLSCA + "; lockstep login keeps " +
			"it); lockstep cert show HOST:PORT tells what the node shows"
	case errors.Is(err, errNodeIsPlain), says("does not speak TLS, and this client does"):
		return "leave --tls-ca, --tls-cert and --tls-key away, " + envTLSCA + " and what lockstep login has kept too; or " +
			"set tls.cert and tls.key at the node: without, what is sent can be read on the way"
	case says("x509:", "tls:", "certificate"):
		return "lockstep cert show HOST:PORT tells what a node shows; --tls-ca names the authorities that are trusted, " +
			"--tls-cert and --tls-key the certificate to show"
	case says("server preface"):
		return "the node may use TLS: --tls-ca ca.pem, or lockstep login; lockstep cert show HOST:PORT tells"
	case errors.Is(err, errEnds):
		return "lockstep cert show HOST:PORT tells whether it wants a certificate (--tls-cert, --tls-key)"
	case errors.Is(err, client.ErrUnavailable) && says("broken pipe", "connection reset"):
		return "lockstep status tells which nodes answer; one that ends connections may want a certificate " +
			"(--tls-cert, --tls-key): lockstep cert show HOST:PORT"
	case errors.Is(err, client.ErrRefused) && says("set backup.path"):
		return "--path names a directory of the node for backups, or s3://BUCKET/PREFIX"
	case errors.Is(err, client.ErrRefused) && says("lockstep "):
		return ""
	case errors.Is(err, client.ErrRefused):
		return "lockstep status tells what the nodes are and what is wrong, and what to do about it"
	case errors.Is(err, ErrNoAnswer), errors.Is(err, client.ErrUnavailable) && says("connection refused", "no such host"):
		return "lockstep doctor, on a node's machine, tells what keeps it from running; lockstep dev starts a pair to try"
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "lockstep status tells which nodes answer, and what is wrong"
	}
	return ""
}
