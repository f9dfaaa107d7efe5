// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// TokenSource gives a token that the client shows to the nodes, and when it expires; a zero time: it is not known when.
// It is called when the client needs a token and the last one is about to expire, or was refused: never by two
// goroutines at once, and at most about once a second. An error is no refusal: the calls that need the token try again,
// as if the node could not be reached.
type TokenSource func(ctx context.Context) (token string, expiry time.Time, err error)

const (
	// tokenMargin is how long before it expires a token is replaced, or a tenth of its life if that is less.
	tokenMargin = 30 * time.Second
	// tokenReread is how often a file with a token is looked at, and how often at most a source is asked.
	tokenReread = time.Second
	// tokenTimeout bounds one call of a TokenSource.
	tokenTimeout = 30 * time.Second
	// maxTokenBytes bounds a token: a node takes no larger header.
	maxTokenBytes = 16 << 10
	// maxRenewals is how many tokens are refused one after the other before an operation gives up.
	maxRenewals = 3
)

// tokens has the token that the client shows. A nil *tokens shows none.
type tokens struct {
	source TokenSource // nil: the token is fixed

	fetching chan struct{} // capacity 1: held during a call of source

	mu      sync.Mutex // guards all below
	token   string
	expiry  time.Time // zero: not known
	until   time.Time // when another one is to be fetched
	fetched time.Time // when source was asked last
	inVain  time.Time // when it was asked last for another token than one that was refused, and had none
	changed time.Time // when the token became another one
	err     error     // of the last call of source
}

// newTokens makes what the options say; nil if they name no token.
func newTokens(o *Options) (*tokens, error) {
	named := 0
	for _, set := range []bool{o.Token != "", o.TokenFile != "", o.TokenSource != nil} {
		if set {
			named++
		}
	}
	t := &tokens{token: o.Token, source: o.TokenSource, fetching: make(chan struct{}, 1)}
	switch {
	case named == 0:
		return nil, nil //nolint:nilnil // no token is no error
	case named > 1:
		return nil, fmt.Errorf("%w: only one of Token, TokenFile and TokenSource can be set", ErrInvalid)
	case o.TokenFile != "":
		t.source = fileSource(o.TokenFile)
		if _, _, err := t.source(context.Background()); err != nil { // a wrong path is told at once
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	case o.Token != "":
		if err := checkToken(o.Token); err != nil {
			return nil, fmt.Errorf("%w: Token: %w", ErrInvalid, err)
		}
	}
	return t, nil
}

// fileSource reads a token from a file again and again.
func fileSource(path string) TokenSource {
	return func(context.Context) (string, time.Time, error) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return "", time.Time{}, fmt.Errorf("read the token: %w", err)
		}
		token := strings.TrimSpace(string(raw))
		if err := checkToken(token); err != nil {
			return "", time.Time{}, fmt.Errorf("the token in %s: %w", path, err)
		}
		return token, time.Time{}, nil
	}
}

// checkToken tells whether a text can be a token at all. The error does not show it.
func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("it is empty")
	case len(token) > maxTokenBytes:
		return fmt.Errorf("it has %d bytes; %d are possible", len(token), maxTokenBytes)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return fmt.Errorf("byte %d is no letter, digit or sign that a token can have", i+1)
		}
	}
	return nil
}

// get returns a token that has not expired.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	token, until := t.token, t.until
	t.mu.Unlock()
	if t.source == nil || token != "" && time.Now().Before(until) {
		return token, nil
	}
	return t.fetch(ctx, false)
}

// fetch asks the source. Calls that come meanwhile wait for it, and take what it said.
func (t *tokens) fetch(ctx context.Context, refused bool) (string, error) {
	asked := time.Now()
	select {
	case t.fetching <- struct{}{}:
		defer func() { <-t.fetching }()
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
	t.mu.Lock()
	token, expiry, err := t.token, t.expiry, t.err
	last := t.fetched
	if refused {
		last = t.inVain
	}
	lately := t.fetched.After(asked) || time.Since(last) < tokenReread
	stale := token == "" || !expiry.IsZero() && time.Now().After(expiry)
	t.mu.Unlock()
	if lately && (!stale || err != nil) {
		return usable(token, expiry, err)
	}
	// It serves all that wait: the end of one call must not fail the others.
	fetch, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTimeout)
	defer cancel()
	fresh, expiry, err := t.source(fetch)
	if err == nil {
		if err = checkToken(fresh); err != nil {
			err = fmt.Errorf("TokenSource: the token: %w", err)
		}
	}
	return t.take(fresh, expiry, err, refused)
}

// take takes note of what the source said.
func (t *tokens) take(fresh string, expiry time.Time, err error, refused bool) (string, error) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fetched, t.err = now, err
	t.until = now.Add(tokenReread)
	if refused && (err != nil || fresh == t.token) {
		t.inVain = now
	}
	if err != nil {
		return usable(t.token, t.expiry, err)
	}
	if fresh != t.token {
		t.token, t.changed = fresh, now
	}
	t.expiry = expiry
	if !expiry.IsZero() && !refused {
		life := expiry.Sub(now)
		t.until = later(t.until, expiry.Add(-min(tokenMargin, life/10)))
	}
	return usable(t.token, expiry, nil)
}

// usable returns the token as long as there is one that has not expired, even if no newer one could be had.
func usable(token string, expiry time.Time, err error) (string, error) {
	if token != "" && (expiry.IsZero() || time.Now().Before(expiry)) {
		return token, nil
	}
	if err == nil {
		err = errors.New("TokenSource: the token has expired already")
	}
	return "", status.Error(codes.Unavailable, "no token to show: "+err.Error())
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// renewed tells whether there is another token than the one that a node has refused in an attempt that began then.
func (t *tokens) renewed(ctx context.Context, began time.Time) bool {
	if t == nil || t.source == nil {
		return false
	}
	t.mu.Lock()
	if t.changed.After(began) {
		t.mu.Unlock()
		return true
	}
	old := t.token
	t.mu.Unlock()
	fresh, err := t.fetch(ctx, true)
	return err == nil && fresh != old
}

// isFresh is renewed for a loop that counts how many tokens were refused one after the other: false when they are too
// many. Any other end of an attempt resets the count.
func (t *tokens) isFresh(ctx context.Context, e *Error, began time.Time, refused *int) bool {
	if !errors.Is(e.kind, ErrUnauthenticated) {
		*refused = 0
		return false
	}
	*refused++
	return *refused <= maxRenewals && t.renewed(ctx, began)
}

// perRPC shows the token with each call on one connection.
type perRPC struct{ tokens *tokens }

// GetRequestMetadata is called by gRPC at the beginning of each call.
func (p perRPC) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := p.tokens.get(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity is false: mayShow has looked at the connection.
func (perRPC) RequireTransportSecurity() bool { return false }

// mayShow tells whether a token can be sent to an address: it is encrypted, or does not leave this machine.
func mayShow(address string, secure, plaintext bool) error {
	host, _, err := net.SplitHostPort(address)
	if secure || plaintext || err != nil {
		return nil //nolint:nilerr // what is no address is refused elsewhere
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return fmt.Errorf("%w: the token would go to %s unencrypted, where everyone on the way can read it: set TLS, or "+
		"AllowPlaintextToken if the network is trusted", ErrInvalid, address)
}

var _ credentials.PerRPCCredentials = perRPC{}
