// SPDX-License-Identifier: Apache-2.0

package raft

import (
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

// voterCount is how many voters a pair has: the two data nodes and the witness.
const voterCount = 3

// Kind tells a data node's voter from a witness. It is part of the voter's id, so that every voter knows it without
// asking.
type Kind string

// The kinds of a voter.
const (
	// KindNode is the voter of a data node.
	KindNode Kind = "node"
	// KindWitness is a voter without a data plane.
	KindWitness Kind = "witness"
)

// TLS secures the connections between voters. Both sides of each connection show a certificate that their authority has
// issued for the host in their address.
type TLS struct {
	// Receive gives the configuration for a connection that comes in, which must ask for a certificate, and Dial that
	// for one that is made. They are called for each connection, so that certificates can change; a server name is
	// added to what Dial gives.
	Receive, Dial func() *tls.Config
	// Names, one of which the certificate of each one who connects must carry: DNS names, IP addresses, URIs. Default:
	// the hosts in the addresses of the voters, those of Options and those that the cluster has.
	Names []string
	// Shown is told of the certificate that the voter at an address has shown when a connection to it was made; nil if it
	// does not matter. It must not block.
	Shown func(address string, cert *x509.Certificate)
	// CA, Cert and Key are the files in PEM, for commands in texts; empty: not known.
	CA, Cert, Key string
}

// Options of Start, Open and RunWitness.
type Options struct {
	// Dir holds the voter's id, vote, log and snapshots; made if it is not there. One voter per directory.
	Dir string
	// Listen is the host:port for everything that voters say to each other. Required.
	Listen string
	// Advertise is the host:port that the other voters reach this one by. Default Listen.
	Advertise string
	// Voters are the advertised addresses of the three voters, this one included; the same on all three. They are used
	// to form the cluster and to find it; after that its members are what Members says.
	Voters []string
	// Kind of this voter. Default KindNode.
	Kind Kind
	// TLS for all connections; nil: none, and then any process that reaches the port can change the record.
	TLS *TLS
	// ElectionTimeout is how long a voter without a word from the leader waits before it stands for election. It must
	// be the same on all voters. Default 500 ms.
	ElectionTimeout time.Duration
	// LeaseTTL of the liveness key. Default 3 s.
	LeaseTTL time.Duration
	// RequestTimeout of the requests that this package makes by itself, and of one try of a request. Default 1 s.
	RequestTimeout time.Duration
	// UnsafeNoFsync skips the fsync of votes and log: for tests and the demo only, since a crash of the machine can
	// then lose a vote, and with it the pair's record.
	UnsafeNoFsync bool
	// Dial makes a connection to another voter. Default TCP. Tests put faults in here.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Bind listens on the address Listen. Default TCP. Tests put a simulated network in here.
	Bind func(ctx context.Context, address string) (net.Listener, error)
	// Logger for the voter's state. Nil: no logs.
	Logger *zap.Logger

	// older makes the voter say that its release knows what 0.1.0 knows. Only tests set it.
	older bool
}

// withDefaults checks the options and fills in what is not set.
func (o Options) withDefaults() (Options, error) {
	if o.Advertise == "" {
		o.Advertise = o.Listen
	}
	if o.Kind == "" {
		o.Kind = KindNode
	}
	if o.Bind == nil {
		o.Bind = listenTCP
	}
	if o.ElectionTimeout <= 0 {
		o.ElectionTimeout = DefaultElectionTimeout
	}
	if o.LeaseTTL <= 0 {
		o.LeaseTTL = DefaultLeaseTTL
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.Dial == nil {
		o.Dial = dialTCP
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	switch {
	case o.Dir == "":
		return o, errors.New("raft: no directory for the voter's vote and log")
	case o.Listen == "":
		return o, errors.New("raft: no address to listen on, host:port")
	case o.Kind != KindNode && o.Kind != KindWitness:
		return o, fmt.Errorf("raft: kind %q; there are %q and %q", o.Kind, KindNode, KindWitness)
	}
	if err := checkAddress(o.Advertise); err != nil {
		return o, fmt.Errorf("raft: the address for the other voters: %w", err)
	}
	voters, err := checkVoters(o.Voters)
	if err != nil {
		return o, err
	}
	o.Voters = voters
	if !slices.Contains(o.Voters, o.Advertise) {
		return o, fmt.Errorf("raft: this voter's own address %s is not among the voters %s", o.Advertise,
			strings.Join(o.Voters, ", "))
	}
	return o, nil
}

// checkVoters returns the addresses sorted.
func checkVoters(voters []string) ([]string, error) {
	for _, v := range voters {
		if err := checkAddress(v); err != nil {
			return nil, fmt.Errorf("raft: the voter %q: %w", v, err)
		}
	}
	voters = slices.Sorted(slices.Values(voters))
	if len(voters) != voterCount || len(slices.Compact(slices.Clone(voters))) != voterCount {
		return nil, fmt.Errorf("raft: %d voters (%s); name three different ones: the two nodes and the witness",
			len(voters), strings.Join(voters, ", "))
	}
	return voters, nil
}

// checkAddress wants a host and a port that the others can dial.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%w: write host:port", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() || port == "" || port == "0" {
		return fmt.Errorf("%q cannot be dialled: name a host and a port", address)
	}
	return nil
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address) //nolint:wrapcheck // a net.OpError says everything
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address) //nolint:wrapcheck // a net.OpError says everything
}
