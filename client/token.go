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

// TokenSource returns a token and its expiry time, zero if unknown. The client calls it when a request needs a token
// and the last token is about to expire, has an unknown expiry time, or was rejected. Calls are never concurrent, and
// usually at least a second apart. If TokenSource returns an error, the client uses the last token until it expires.
// Without a valid token, requests are retried.
type TokenSource func(ctx context.Context) (token string, expiry time.Time, err error)

const (
	// tokenMargin is the time before the expiry at which a token is replaced, limited to a tenth of its lifetime.
	tokenMargin = 30 * time.Second
	// tokenReread is the interval at which a token file is checked, and the usual minimum interval between calls of a
	// source.
	tokenReread  = time.Second
	tokenTimeout = 30 * time.Second
	// maxTokenBytes is the maximum size of a token: nodes accept no larger header.
	maxTokenBytes = 16 << 10
	// maxRenewals is the number of consecutive rejected tokens that an operation replaces before it fails.
	maxRenewals = 3
)

// tokens contains the current token of the client. A nil *tokens sends no token.
type tokens struct {
	source TokenSource // nil: the token is fixed

	fetching chan struct{} // capacity 1: full during a call of source

	mu      sync.Mutex // guards the fields below
	token   string
	expiry  time.Time // zero: unknown
	until   time.Time // time of the next fetch
	fetched time.Time // time of the last call of source
	inVain  time.Time // time of the last call that followed a rejection and returned no new token
	changed time.Time // time of the last token change
	err     error     // error of the last call of source
}

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
		if _, _, err := t.source(context.Background()); err != nil { // report a wrong path early
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	case o.Token != "":
		if err := checkToken(o.Token); err != nil {
			return nil, fmt.Errorf("%w: Token: %w", ErrInvalid, err)
		}
	}
	return t, nil
}

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

// checkToken rejects strings that cannot be tokens. Its error does not contain the token.
func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("token is empty")
	case len(token) > maxTokenBytes:
		return fmt.Errorf("token has %d bytes; the maximum is %d", len(token), maxTokenBytes)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return fmt.Errorf("byte %d is not allowed in a token", i+1)
		}
	}
	return nil
}

func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	token, until := t.token, t.until
	t.mu.Unlock()
	if t.source == nil || token != "" && time.Now().Before(until) {
		return token, nil
	}
	return t.fetch(ctx, false)
}

// fetch calls the source. Concurrent calls wait and share the result. refused means that a node rejected the current
// token.
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
	// The result is shared by all waiting calls: a canceled call must not fail the others.
	fetch, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTimeout)
	defer cancel()
	fresh, expiry, err := t.source(fetch)
	if err == nil {
		if err = checkToken(fresh); err != nil {
			err = fmt.Errorf("TokenSource: %w", err)
		}
	}
	return t.take(fresh, expiry, err, refused)
}

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
		if next := expiry.Add(-min(tokenMargin, life/10)); next.After(t.until) {
			t.until = next
		}
	}
	return usable(t.token, expiry, nil)
}

// usable returns the token if it has not expired, even if err reports that fetching a newer token failed.
func usable(token string, expiry time.Time, err error) (string, error) {
	if token != "" && (expiry.IsZero() || time.Now().Before(expiry)) {
		return token, nil
	}
	if err == nil {
		err = errors.New("TokenSource: the token has expired")
	}
	return "", status.Error(codes.Unavailable, "no valid token: "+err.Error())
}

// renewed reports whether a token is available that is newer than the one rejected in an attempt that started at began.
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

// isFresh is like renewed, for a retry loop. It counts consecutive rejected tokens in refused, and returns false
// above maxRenewals. Any other error resets the count.
func (t *tokens) isFresh(ctx context.Context, e *Error, began time.Time, refused *int) bool {
	if !errors.Is(e.kind, ErrUnauthenticated) {
		*refused = 0
		return false
	}
	*refused++
	return *refused <= maxRenewals && t.renewed(ctx, began)
}

type perRPC struct{ tokens *tokens }

func (p perRPC) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := p.tokens.get(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity returns false, because maySend has checked the connection.
func (perRPC) RequireTransportSecurity() bool { return false }

// maySend returns nil if a token may be sent to an address: the connection must be encrypted or local, unless
// plaintext is set.
func maySend(address string, secure, plaintext bool) error {
	host, _, err := net.SplitHostPort(address)
	if secure || plaintext || err != nil {
		return nil //nolint:nilerr // checkAddress rejects it
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return fmt.Errorf("%w: the token would be sent to %s unencrypted: set TLS, or AllowPlaintextToken if the network is "+
		"trusted", ErrInvalid, address)
}

var _ credentials.PerRPCCredentials = perRPC{}
