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

// Options of a Client. Only Addresses must be set.
type Options struct {
	// Addresses of the nodes, host:port; both of a pair, one of a standalone node. In any order.
	Addresses []string
	// ProbeInterval is how often a node that calls wait for is asked whether it is there; the same time is given to
	// its answer. Default 1 s. A node that was killed, or lost its role, is noticed without it.
	ProbeInterval time.Duration
	// RetryMin and RetryMax bound the time between two attempts. Defaults 2 ms and 50 ms.
	RetryMin, RetryMax time.Duration
	// FailFast ends calls with ErrUnavailable as soon as it is known that none of the addresses can be reached: nothing
	// listens, the name does not exist, or the two ends disagree about TLS; and only until a node has answered once.
	// Without it, calls wait as long as their context allows, since nodes may yet be started; producers and consumers
	// do so with it, too: ask WaitActive first.
	//
	// It also ends calls and publishes with ErrRefused while the pair refuses writes because fewer nodes are in sync
	// than min-in-sync says, unless an earlier attempt may have been carried out. Without it they wait for the other
	// node.
	FailFast bool
	// FixedAddresses has the client use Addresses only. Without it, it follows what nodes say of the address of the
	// active.
	FixedAddresses bool
	// MaxMessageBytes bounds the body of one message, 64 MiB by default: more is refused without asking a node.
	MaxMessageBytes int
	// TLS of the connections, with the client's own certificate if the nodes want one; nil: not encrypted.
	TLS *tls.Config
	// TLSFiles has the client read authorities, certificate and key from files, and again when they change. In place of
	// TLS.
	TLSFiles TLSFiles
	// Token says who this client is: a static token of the pair or a JWT, without "Bearer". At most one of Token,
	// TokenFile and TokenSource can be set. Shown beside a certificate, the token counts.
	Token string
	// TokenFile has the token, with or without spaces around it. It is read again when it may have changed: a file that
	// is replaced takes effect within two seconds, and at once when a node refuses the token before.
	TokenFile string
	// TokenSource gives tokens that expire, such as those of an OpenID Connect provider.
	TokenSource TokenSource
	// AllowPlaintextToken has the token shown over connections that are neither encrypted nor to this machine. Without
	// it, such addresses are refused with ErrInvalid.
	AllowPlaintextToken bool
	// Tracer records publishes and deliveries as spans of traces; package client/tracing makes one for OpenTelemetry.
	// Nil: none is recorded, and nothing of it is called.
	Tracer Tracer
	// DialOptions are added to the client's own, for credentials, interceptors and dialers.
	DialOptions []grpc.DialOption

	secure credentials.TransportCredentials // of TLSFiles
	tokens *tokens                          // of Token, TokenFile and TokenSource; nil: none
}

// Defaults and limits.
const (
	defaultProbeInterval   = time.Second
	defaultRetryMin        = 2 * time.Millisecond
	defaultRetryMax        = 50 * time.Millisecond
	defaultMaxMessageBytes = 64 << 20
	maxAddresses           = 8       // given and learnt ones together
	streamWindowBytes      = 4 << 20 // HTTP/2 window of one stream
	connWindowBytes        = 16 << 20
	readBufferBytes        = 64 << 10
	writeBufferBytes       = 256 << 10 // shared by all connections; an idle one has none
	maxReceiveBytes        = 512 << 20 // the server bounds what it sends; this guards against nonsense
)

// withDefaults checks the options and fills in what is not set.
func (o Options) withDefaults() (Options, error) {
	if len(o.Addresses) == 0 {
		return o, fmt.Errorf("%w: no address given: give the host:port of both nodes", ErrInvalid)
	}
	if len(o.Addresses) > maxAddresses {
		return o, fmt.Errorf("%w: %d addresses given, at most %d make sense", ErrInvalid, len(o.Addresses),
			maxAddresses)
	}
	seen := make(map[string]bool)
	for _, a := range o.Addresses {
		if err := checkAddress(a); err != nil {
			return o, err
		}
		if seen[a] {
			return o, fmt.Errorf("%w: address %s is given twice", ErrInvalid, a)
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
			if err := mayShow(a, o.secured(), o.AllowPlaintextToken); err != nil {
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

// passthrough, before an address: the name is looked up at each connection attempt, so that a node may come back under
// another IP.
const passthrough = "passthrough:///"

// dial makes a connection that is opened when it is first used. gRPC's own waits between connection attempts hardly
// matter, since a connection that could not be opened is replaced (node.watchOnce). ClientConn.ResetConnectBackoff
// would be the other way, but it races with connections being opened (grpc-go 1.85).
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
		if err := mayShow(address, o.secured(), o.AllowPlaintextToken); err != nil {
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

// secured tells whether connections are encrypted.
func (o Options) secured() bool { return o.TLS != nil || o.secure != nil }

// newBackoff gives the waits between attempts.
func (o Options) newBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: o.RetryMin, MaxInterval: o.RetryMax, Multiplier: 1.7, RandomizationFactor: 0.3,
	}
}
