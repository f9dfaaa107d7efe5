// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

// fakeAuth authenticates calls by their token.
type fakeAuth struct {
	mu    sync.Mutex
	good  map[string]bool // nil: all calls are accepted
	asked map[string]int  // calls by token
}

// accept sets the only accepted tokens.
func (d *fakeAuth) accept(tokens ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.good = make(map[string]bool)
	for _, token := range tokens {
		d.good["Bearer "+token] = true
	}
}

func (d *fakeAuth) seen(token string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked["Bearer "+token]
}

func (d *fakeAuth) enter(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	shown := fmt.Sprint(md.Get("authorization"))
	shown = shown[1 : len(shown)-1]
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked == nil {
		d.asked = make(map[string]int)
	}
	d.asked[shown]++
	if d.good == nil || d.good[shown] {
		return nil
	}
	return wrongToken("UNAUTHENTICATED")
}

func wrongToken(reason string) error {
	st, err := status.New(codes.Unauthenticated, "the token is wrong").WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: "lockstep.v1"})
	if err != nil {
		return err
	}
	return st.Err()
}

// options returns the interceptors. A stream ends when its token is no longer accepted.
func (d *fakeAuth) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if err := d.enter(ctx); err != nil {
					return nil, err
				}
				return next(ctx, req)
			},
		),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := d.enter(s.Context()); err != nil {
				return err
			}
			done := make(chan error, 1)
			go func() { done <- next(srv, s) }()
			for {
				select {
				case err := <-done:
					return err
				case <-time.After(10 * time.Millisecond):
				}
				if d.enter(s.Context()) != nil {
					return wrongToken("TOKEN_EXPIRED")
				}
			}
		}),
	}
}

// The token is sent with every call, from each of the three sources.
func TestTokenIsSent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(" lsk_good\n"), 0o600))
	for name, o := range map[string]client.Options{
		"text": {Token: "lsk_good"},
		"file": {TokenFile: file},
		"source": {TokenSource: func(context.Context) (string, time.Time, error) {
			return "lsk_good", time.Now().Add(time.Hour), nil
		}},
	} {
		simulated(t, name, func(t *testing.T) {
			p := newFakePair(t)
			p.auth.accept("lsk_good")
			c := p.client(o)
			_, err := c.Publish(t.Context(), "q", client.Message{Body: []byte("x")})
			require.NoError(t, err)
			require.Equal(t, []string{"x"}, p.bodies("q"))
		})
	}
}

// With a wrong token, calls, producers and consumers fail immediately with ErrUnauthenticated, and the client does not
// retry continuously.
func TestWrongTokenIsFinal(t *testing.T) {
	for name, token := range map[string]string{"wrong": "lsk_bad", "none": ""} {
		simulated(t, name, func(t *testing.T) {
			p := newFakePair(t)
			p.auth.accept("lsk_good")
			c := p.client(client.Options{Token: token})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.WaitActive(ctx)
			require.ErrorIs(t, err, client.ErrUnauthenticated)
			require.NotErrorIs(t, err, client.ErrDenied)
			require.NotErrorIs(t, err, client.ErrUnavailable)
			require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
			_, err = c.Publish(ctx, "q", client.Message{Body: []byte("x")})
			require.ErrorIs(t, err, client.ErrUnauthenticated)
			require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
			_, err = admin.New(c).DeleteQueue(ctx, "q", false)
			require.ErrorIs(t, err, client.ErrUnauthenticated)
			consumer, err := c.Consume(ctx, "q", client.ConsumerOptions{})
			if err == nil {
				_, err = consumer.Receive(ctx)
			}
			require.ErrorIs(t, err, client.ErrUnauthenticated)
			require.NoError(t, ctx.Err())
			p.auth.mu.Lock()
			defer p.auth.mu.Unlock()
			calls := 0
			for _, n := range p.auth.asked {
				calls += n
			}
			require.Less(t, calls, 40)
		})
	}
}

// A rejected client works again as soon as the nodes accept its token.
func TestTokenAcceptedLater(t *testing.T) { synctest.Test(t, testTokenAcceptedLater) }

func testTokenAcceptedLater(t *testing.T) {
	p := newFakePair(t)
	p.auth.accept()
	c := p.client(client.Options{Token: "lsk_new"})
	_, err := c.WaitActive(t.Context())
	require.ErrorIs(t, err, client.ErrUnauthenticated)
	p.auth.accept("lsk_new")
	require.Eventually(t, func() bool {
		_, err := c.Publish(t.Context(), "q", client.Message{Body: []byte("x")})
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
}

// Streams that end because of an expired token are reopened with the next token. No message is lost or duplicated,
// and no outcome is unknown.
func TestTokenIsRenewed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(token), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	for name, useFile := range map[string]bool{"file": true, "source": false} {
		simulated(t, name, func(t *testing.T) {
			p := newFakePair(t)
			p.auth.accept("lsk_0")
			write("lsk_0")
			var now atomic.Int64
			o := client.Options{TokenFile: file}
			if !useFile {
				o = client.Options{TokenSource: func(context.Context) (string, time.Time, error) {
					return fmt.Sprintf("lsk_%d", now.Load()), time.Now().Add(time.Hour), nil
				}}
			}
			c := p.client(o)
			consumer, err := c.Consume(t.Context(), "q", client.ConsumerOptions{})
			require.NoError(t, err)
			const messages, renewals = 600, 3
			var wg sync.WaitGroup
			var failed atomic.Pointer[error]
			published := make(chan struct{}, messages)
			wg.Go(func() {
				for n := range messages {
					if _, err := c.Publish(t.Context(), "q", client.Message{Body: fmt.Append(nil, n)}); err != nil {
						failed.Store(&err)
						return
					}
					published <- struct{}{}
				}
			})
			wg.Go(func() {
				for range messages {
					d, err := consumer.Receive(t.Context())
					if err != nil {
						failed.Store(&err)
						return
					}
					d.Ack()
				}
			})
			for n := 1; n <= renewals; n++ {
				for range messages / (renewals + 1) {
					select {
					case <-published:
					case <-time.After(20 * time.Second):
						if err := failed.Load(); err != nil {
							require.NoError(t, *err)
						}
						require.FailNow(t, "publishes stalled")
					}
				}
				old, fresh := fmt.Sprintf("lsk_%d", n-1), fmt.Sprintf("lsk_%d", n)
				p.auth.accept(old, fresh) // both tokens, so that no token is rejected before a newer one exists
				now.Store(int64(n))
				write(fresh)
				p.auth.accept(fresh)
			}
			wg.Wait()
			if err := failed.Load(); err != nil {
				require.NoError(t, *err)
			}
			require.Len(t, p.bodies("q"), messages)
			require.Eventually(t, func() bool { return p.auth.seen("lsk_3") > 0 }, 20*time.Second, 10*time.Millisecond)
		})
	}
}

// While the token source fails, calls wait as they do for an unreachable node.
func TestTokenSourceFails(t *testing.T) { synctest.Test(t, testTokenSourceFails) }

func testTokenSourceFails(t *testing.T) {
	p := newFakePair(t)
	p.auth.accept("lsk_good")
	var broken atomic.Bool
	broken.Store(true)
	c := p.client(client.Options{TokenSource: func(context.Context) (string, time.Time, error) {
		if broken.Load() {
			return "", time.Time{}, errors.New("provider unavailable")
		}
		return "lsk_good", time.Time{}, nil
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.WaitActive(ctx)
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.Contains(t, err.Error(), "provider unavailable")
	broken.Store(false)
	_, err = c.Publish(t.Context(), "q", client.Message{Body: []byte("x")})
	require.NoError(t, err)
}

// Options with unusable tokens, or tokens over plaintext connections, are rejected.
func TestTokenOptions(t *testing.T) {
	source := func(context.Context) (string, time.Time, error) { return "x", time.Time{}, nil }
	for name, tt := range map[string]struct {
		o    client.Options
		want string
	}{
		"two":          {client.Options{Token: "a", TokenSource: source}, "only one"},
		"no file":      {client.Options{TokenFile: filepath.Join(t.TempDir(), "missing")}, syscall.ENOENT.Error()},
		"space inside": {client.Options{Token: "lsk_secret part"}, "byte 11"},
		"plaintext":    {client.Options{Token: "lsk_secret", Addresses: []string{"192.0.2.1:7420"}}, "unencrypted"},
		"name":         {client.Options{Token: "lsk_secret", Addresses: []string{"db.example.com:7420"}}, "unencrypted"},
		"loopback": {
			client.Options{Token: "lsk_secret", Addresses: []string{"127.0.0.2:7420", "[::1]:1", "localhost:1"}}, "",
		},
		"over TLS": {client.Options{Token: "lsk_secret", Addresses: []string{"192.0.2.1:7420"}, TLS: &tls.Config{}}, ""},
		"plaintext allowed": {
			client.Options{Token: "lsk_secret", Addresses: []string{"192.0.2.1:7420"}, AllowPlaintextToken: true}, "",
		},
		"no token":   {client.Options{Addresses: []string{"192.0.2.1:7420"}}, ""},
		"only space": {client.Options{Token: " "}, "byte 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.o.Addresses == nil {
				tt.o.Addresses = []string{"127.0.0.1:1"}
			}
			c, err := client.OpenWith(t.Context(), tt.o)
			if tt.want == "" {
				require.NoError(t, err)
				require.NoError(t, c.Close())
				return
			}
			require.ErrorIs(t, err, client.ErrInvalid)
			require.Contains(t, err.Error(), tt.want)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}
