// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/proto/codec"
)

// Options configures a [Client]. Only Addresses is required.
type Options struct {
	// Addresses are the addresses of the nodes, host:port, in any order: both nodes of a pair, or a standalone node.
	// With two sites, they can include the nodes of both sites. The limit is 16, including the addresses that nodes
	// report for the pair and for the other site.
	Addresses []string
	// ProbeInterval is the interval and the timeout of probes to a node with pending calls. Default 1 s.
	ProbeInterval time.Duration
	// RetryMin and RetryMax are the first and the maximum delay between two attempts of a call. Defaults 2 ms and 50
	// ms. Each delay varies randomly by up to 30 %, and is longer if a node requests it.
	RetryMin, RetryMax time.Duration
	// FailFast ends calls with [ErrUnavailable] as soon as all addresses are known to be unreachable: connection
	// refused, unknown host name, TLS mismatch, or the port of another service. It applies only until a node has
	// responded for the first time. Publishes and consumers wait nevertheless; to fail fast, call [Client.WaitActive]
	// first.
	//
	// While the pair refuses writes because fewer nodes are in sync than min-in-sync requires, FailFast ends calls and
	// publishes with [ErrRefused], unless an earlier attempt may have been committed.
	FailFast bool
	// FixedAddresses disables the use of addresses that nodes report: of the active node, of the other site, and of
	// other pairs of a fleet. Requests for queues of other pairs then return [ErrRefused].
	FixedAddresses bool
	// AnySite restricts the client to one of two sites, for administration. The client uses the active node of the pair
	// in Addresses even if the pair is a replica, and does not use the other site. Calls, publishes and consumers then
	// fail with [ErrRefused] and the reason REPLICA if only the primary serves them. Addresses must not include nodes of
	// both pairs.
	AnySite bool
	// MaxMessageBytes is the maximum size of a message body, 64 MiB by default. The client rejects larger messages with
	// [ErrLimit].
	MaxMessageBytes int
	// TLS is the configuration of the connections, including the client certificate if the nodes require one. If nil,
	// connections are not encrypted.
	TLS *tls.Config
	// TLSFiles is an alternative to TLS: the files of the CA certificates, the client certificate and its key. Changed
	// files are reloaded.
	TLSFiles TLSFiles
	// Token authenticates the client: a static token of the pair or a JWT, without the "Bearer" prefix. Set at most one
	// of Token, TokenFile and TokenSource. A token takes precedence over a client certificate.
	Token string
	// TokenFile is a file that contains the token; surrounding white space is ignored. New requests use a changed token
	// within about a second.
	TokenFile string
	// TokenSource supplies tokens that expire, such as those of an OpenID Connect provider.
	TokenSource TokenSource
	// AllowPlaintextToken permits sending the token over unencrypted connections to other machines. By default, such a
	// configuration is rejected with [ErrInvalid].
	AllowPlaintextToken bool
	// Tracer, if not nil, records publishes and deliveries as trace spans. Package client/tracing implements it with
	// OpenTelemetry.
	Tracer Tracer
	// DialOptions are appended to the client's own gRPC options. They can add credentials, interceptors and dialers.
	DialOptions []grpc.DialOption

	secure credentials.TransportCredentials // created from TLSFiles
	tokens *tokens                          // created from Token, TokenFile or TokenSource; nil without a token
}

const (
	defaultProbeInterval   = time.Second
	defaultRetryMin        = 2 * time.Millisecond
	defaultRetryMax        = 50 * time.Millisecond
	defaultMaxMessageBytes = 64 << 20
	maxAddresses           = 16      // limit of configured and learned addresses: four nodes and their aliases
	streamWindowBytes      = 4 << 20 // HTTP/2 window of one stream
	connWindowBytes        = 16 << 20
	readBufferBytes        = 64 << 10
	writeBufferBytes       = 256 << 10 // shared by all connections; an idle connection uses none
	maxReceiveBytes        = 512 << 20 // sanity limit; the server limits the size of its responses
)

func (o Options) withDefaults() (Options, error) {
	if len(o.Addresses) == 0 {
		return o, fmt.Errorf("%w: no addresses: set the host:port of both nodes", ErrInvalid)
	}
	if len(o.Addresses) > maxAddresses {
		return o, fmt.Errorf("%w: %d addresses, the limit is %d", ErrInvalid, len(o.Addresses), maxAddresses)
	}
	seen := make(map[string]bool)
	for _, a := range o.Addresses {
		if err := checkAddress(a); err != nil {
			return o, err
		}
		if seen[a] {
			return o, fmt.Errorf("%w: duplicate address %s", ErrInvalid, a)
		}
		seen[a] = true
	}
	if err := o.readFiles(); err != nil {
		return o, err
	}
	var err error
	if o.tokens, err = newTokens(&o); err != nil {
		return o, err
	}
	if o.tokens != nil {
		for _, a := range o.Addresses {
			if err := maySend(a, o.secured(), o.AllowPlaintextToken); err != nil {
				return o, err
			}
		}
	}
	setDefault(&o.ProbeInterval, defaultProbeInterval)
	setDefault(&o.RetryMin, defaultRetryMin)
	setDefault(&o.RetryMax, max(defaultRetryMax, o.RetryMin))
	setDefault(&o.MaxMessageBytes, defaultMaxMessageBytes)
	return o, nil
}

func setDefault[T ~int | ~int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// passthrough is the gRPC scheme with which the dialer resolves the host name at each connection attempt. The IP
// address of a node may change.
const passthrough = "passthrough:///"

// dial creates a connection that is opened on first use. Most connections that could not be opened are replaced
// (node.watchOnce), because ClientConn.ResetConnectBackoff races with connections that are being opened (grpc-go
// 1.85).
func (o Options) dial(address string) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if o.secure != nil {
		creds = o.secure
	} else if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{
				BaseDelay: 5 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: o.ProbeInterval,
			},
			MinConnectTimeout: o.ProbeInterval,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(streamWindowBytes),
		grpc.WithInitialConnWindowSize(connWindowBytes),
		grpc.WithReadBufferSize(readBufferBytes),
		grpc.WithWriteBufferSize(writeBufferBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceiveBytes), grpc.MaxCallSendMsgSize(maxReceiveBytes)),
	}
	if o.tokens != nil {
		if err := maySend(address, o.secured(), o.AllowPlaintextToken); err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithPerRPCCredentials(perRPC{o.tokens}))
	}
	if o.Tracer != nil {
		opts = append(opts, o.Tracer.DialOptions()...)
	}
	cc, err := grpc.NewClient(passthrough+address, slices.Concat(codec.DialOptions(), opts, o.DialOptions)...)
	if err != nil {
		return nil, fmt.Errorf("connection to %s: %w", address, err)
	}
	return cc, nil
}

func (o Options) secured() bool { return o.TLS != nil || o.secure != nil }

func (o Options) newBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: o.RetryMin, MaxInterval: o.RetryMax, Multiplier: 1.7, RandomizationFactor: 0.3,
	}
}
