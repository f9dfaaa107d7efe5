// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Defaults of Options.
const (
	DefaultLeaseTTL        = 3 * time.Second
	DefaultElectionTimeout = 500 * time.Millisecond
	DefaultRequestTimeout  = time.Second
)

const voterCount = 3

// Kind distinguishes a data node's voter from a witness, which has no data plane. It is part of the voter's ID.
type Kind string

// Kinds of voters.
const (
	KindNode    Kind = "node"
	KindWitness Kind = "witness"
)

// TLS secures the connections between voters. Both sides of a connection present a certificate of the CA. That of the
// accepting voter must contain the host in its address; for that of the connecting voter, see Names.
type TLS struct {
	// Receive returns the configuration for incoming connections, which must request a client certificate. Dial returns
	// the configuration for outgoing connections; the voter adds the server name. Both are called for each connection, so
	// that certificates can change.
	Receive, Dial func() *tls.Config
	// Names are the accepted names in client certificates: DNS names, IP addresses or URIs. Default: the hosts in the
	// voters' addresses.
	Names []string
	// Shown, if not nil, is called with the verified certificate of the voter at an address. It must not block.
	Shown func(address string, cert *x509.Certificate)
	// CA, Cert and Key are paths of PEM files, for commands in messages; empty if unknown.
	CA, Cert, Key string
}

// Options configures Start, Open and RunWitness.
type Options struct {
	// Dir is the directory of the voter's ID, vote, log and snapshots. It is created if missing. Only one voter can use
	// it.
	Dir string
	// Listen is the host:port for all traffic between voters.
	Listen string
	// Advertise is the host:port at which the other voters reach this voter. Default Listen.
	Advertise string
	// Voters are the advertised addresses of the three voters, including this voter. They must be the same on all
	// three voters. They are used to form and find the cluster; Members returns its current members.
	Voters []string
	// Kind is the kind of this voter. Default KindNode.
	Kind Kind
	// TLS secures all connections. If nil, any process that reaches the port can change the record.
	TLS *TLS
	// ElectionTimeout is the time without a message from the leader after which a voter starts an election. It must be
	// the same on all voters. Default 500 ms.
	ElectionTimeout time.Duration
	// LeaseTTL is the time to live of a process's lease at the leader. A live process renews its lease before then.
	// Default 3 s.
	LeaseTTL time.Duration
	// RequestTimeout limits background requests, and each try of a request except membership changes. Default 1 s.
	RequestTimeout time.Duration
	// UnsafeNoFsync skips every fsync of votes and log, for tests and the demo only: a machine crash can lose a vote, and
	// thereby the cluster record.
	UnsafeNoFsync bool
	// Dial and Bind open connections and the listener. Default TCP. Tests inject faults and a simulated network.
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Bind   func(ctx context.Context, address string) (net.Listener, error)
	Logger *zap.Logger

	// older makes the voter announce the features of 0.1.0. Only tests set it.
	older bool
}

func (o Options) withDefaults() (Options, error) {
	o.Advertise, o.Kind = cmp.Or(o.Advertise, o.Listen), cmp.Or(o.Kind, KindNode)
	if o.Bind == nil {
		o.Bind = listenTCP
	}
	o.ElectionTimeout = cmp.Or(max(o.ElectionTimeout, 0), DefaultElectionTimeout)
	o.LeaseTTL = cmp.Or(max(o.LeaseTTL, 0), DefaultLeaseTTL)
	o.RequestTimeout = cmp.Or(max(o.RequestTimeout, 0), DefaultRequestTimeout)
	if o.Dial == nil {
		o.Dial = dialTCP
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	switch {
	case o.Dir == "":
		return o, errors.New("raft: no directory")
	case o.Listen == "":
		return o, errors.New("raft: no listen address (host:port)")
	case o.Kind != KindNode && o.Kind != KindWitness:
		return o, fmt.Errorf("raft: invalid kind %q; it must be %q or %q", o.Kind, KindNode, KindWitness)
	}
	if err := checkAddress(o.Advertise); err != nil {
		return o, fmt.Errorf("raft: advertised address: %w", err)
	}
	voters, err := checkVoters(o.Voters)
	if err != nil {
		return o, err
	}
	o.Voters = voters
	if !slices.Contains(o.Voters, o.Advertise) {
		return o, fmt.Errorf("raft: address %s of this voter is not among the voters %s", o.Advertise,
			strings.Join(o.Voters, ", "))
	}
	return o, nil
}

func checkVoters(voters []string) ([]string, error) {
	for _, v := range voters {
		if err := checkAddress(v); err != nil {
			return nil, fmt.Errorf("raft: voter %q: %w", v, err)
		}
	}
	voters = slices.Sorted(slices.Values(voters))
	if len(voters) != voterCount || len(slices.Compact(slices.Clone(voters))) != voterCount {
		return nil, fmt.Errorf("raft: %d voters (%s); three different addresses are required: the two nodes and the witness",
			len(voters), strings.Join(voters, ", "))
	}
	return voters, nil
}

// checkAddress checks that an address has a host and a port that the other voters can dial.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%w: must be host:port", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || port == "" || port == "0" {
		return fmt.Errorf("%q cannot be dialed: a host and a port are required", address)
	}
	return nil
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address) //nolint:wrapcheck // a net.OpError includes the address
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address) //nolint:wrapcheck // a net.OpError includes the address
}
