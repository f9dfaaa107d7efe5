// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/store/datadir"
)

// hint returns advice for an error; empty for an unknown error. Before it suggests TLS flags, it checks whether the
// server uses TLS. It also checks whether the environment still sets a variable that configured the client in
// release 0.1, but is a node setting now.
func (env *Env) hint(ctx context.Context, err error) string {
	next := hint(err)
	if !strings.Contains(next, "--tls-") {
		return next
	}
	if addresses, addrErr := env.Addresses(); addrErr == nil && connectReason(err) == tlsRequired &&
		!slices.ContainsFunc(addresses, func(at string) bool { return speaksTLS(ctx, at) }) {
		return hint(errOtherPort)
	}
	for _, name := range [...]string{envTLSCA, envTLSCert, envTLSKey} {
		former := strings.Replace(name, "_CLIENT", "", 1)
		_, set := env.Lookup(former)
		if _, now := env.Lookup(name); set && !now {
			return name + " instead of " + former + ", which is a node setting and ignored here; or " + next
		}
	}
	return next
}

// reasonHints contains advice by the node's ErrorReason.
var reasonHints = map[string]string{ //nolint:gochecknoglobals // a table
	"QUEUE_PAUSED":          "`lockstep queue show` for the reason of the pause, or `lockstep queue resume` to end it",
	"ACCESS_NOT_FOUND":      "`lockstep access list` to list rules, roles, tokens and quotas",
	"NO_BACKUP_PATH":        "`--path` with a backup directory on the node, or s3://BUCKET/PREFIX",
	"POLICY_NOT_FOUND":      "`lockstep policy list` to list policies",
	"SCHEDULE_NOT_FOUND":    "`lockstep schedule list` to list schedules",
	"REPLICA":               "`lockstep site status` for the addresses of the primary, and `--addr` with them",
	"DIRECTORY_UNAVAILABLE": "`lockstep fleet status` for the state of the directory",
	"CROSS_PAIR":            "names with the same tag, such as orders{7} and invoices{7}, for queues of a transaction",
	"SITE_ROLE":             "`lockstep site status` for the roles of both sites",
	"SITE_SWITCH":           "`lockstep site status` for the lag of the replica, and a longer `--timeout`",
	"SITE_NOT_COMPARED":     "`lockstep site status` for the lag of the replica, then repeat the command",
	"SITE_BEHIND": "\"Set up the replica again\" in docs/how-to/fail-over-to-another-site.md; site.keep-bytes of " +
		"the primary is the log retained for a replica",
	"SITE_UNREACHABLE": "`lockstep status` with the addresses of the other site, and site.remote, site.token-file and " +
		"site.ca in the configuration of the nodes",
}

// hint returns advice for an error. It returns "" for an unknown error, and if the error already contains the
// advice.
func hint(err error) string {
	text := err.Error()
	states := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	if e, ok := errors.AsType[*hintedError](err); ok {
		return e.hint
	}
	reason := connectReason(err)
	switch {
	case errors.Is(err, client.ErrUnauthenticated):
		return "`lockstep login` to store a token, or `--token-file` to read one from a file"
	case errors.Is(err, client.ErrDenied):
		return "`lockstep access whoami` to show the caller's identity and rights"
	case errors.Is(err, client.ErrSubscriptionNotFound):
		return "`lockstep subscription list` to list subscriptions, or `lockstep subscription create` to create one"
	case errors.Is(err, client.ErrQueueNotFound):
		return "`lockstep queue list` to list queues, or `lockstep queue create` to create one"
	case errors.Is(err, admin.ErrNotEmpty):
		return "`lockstep queue show` to inspect the queue, or `lockstep queue purge` to delete its messages"
	case errors.Is(err, admin.ErrNoJob):
		return "`lockstep job list` to list jobs"
	case errors.Is(err, admin.ErrNoPolicy):
		return "`lockstep policy list` to list policies"
	case errors.Is(err, admin.ErrNoTransaction):
		return "`lockstep txn list` to list prepared transactions"
	case errors.Is(err, datadir.ErrInUse):
		return "`lockstep status` to show the running node"
	case errors.Is(err, datadir.ErrNone), errors.Is(err, fs.ErrNotExist) && states(datadir.PageFileName):
		return "`lockstep doctor --config node.yaml` to check the directory in the node's setting data.dir"
	case errors.Is(err, errOtherPort), reason == notClientPort:
		return "`--addr` with the client port of the nodes (setting listen, 7420 by default); the console, metrics, AMQP " +
			"and raft have other ports"
	case errors.Is(err, errNodeSpeaksTLS), reason == tlsRequired:
		return "`--tls-ca ca.pem` with the CA of the node's certificate (environment: " + envTLSCA + "), `lockstep login` " +
			"to store it, or `lockstep cert show HOST:PORT` to show the node's certificate"
	case errors.Is(err, errNodeIsPlain), reason == tlsUnsupported:
		return "the command without --tls-ca, --tls-cert, --tls-key, " + envTLSCA + " and TLS files in the profile, or set " +
			"tls.cert and tls.key on the node; without TLS, traffic can be read on the network"
	case errors.Is(err, errCertificates), reason == badCertificate, states("x509:", "tls:"):
		return "`lockstep cert show HOST:PORT` to show the node's certificate, `--tls-ca` with its CA, and `--tls-cert` " +
			"and `--tls-key` with a client certificate"
	case states("server preface"):
		return "`--tls-ca ca.pem` or `lockstep login` if the node uses TLS, or `lockstep cert show HOST:PORT` to check"
	case errors.Is(err, errEnds):
		return "`lockstep cert show HOST:PORT` to check whether the node requires a certificate (--tls-cert, --tls-key)"
	case errors.Is(err, client.ErrUnavailable) && states("broken pipe", "connection reset"):
		return "`lockstep status` to see which nodes respond, or `lockstep cert show HOST:PORT` to check whether a node " +
			"requires a certificate (--tls-cert, --tls-key)"
	case reasonHints[reason] != "":
		return reasonHints[reason]
	case errors.Is(err, client.ErrRefused) && states("lockstep ", "--", ": set ", ": change "):
		return ""
	case errors.Is(err, client.ErrRefused):
		return "`lockstep status` to show nodes, conditions and actions"
	case errors.Is(err, ErrNoAnswer), errors.Is(err, client.ErrUnavailable) && states("connection refused",
		"no such host"):
		return "`--addr` or " + EnvAddr + " with the addresses of the nodes, `lockstep doctor` on a node's machine to find " +
			"out why the node does not run, or `lockstep dev` to start a local pair"
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "`lockstep status` to see which nodes respond, and their conditions"
	}
	return ""
}
