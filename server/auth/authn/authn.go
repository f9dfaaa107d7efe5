// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// TokenPrefix is the prefix of all tokens that the pair creates.
const TokenPrefix = "lsk_"

// Lookup returns the owner of the token with the given SHA-256. A zero expiry means that the token does not expire.
type Lookup func(sum [sha256.Size]byte) (principal string, groups []string, expiry time.Time, ok bool)

// Options configures New.
type Options struct {
	Tokens Lookup // finds tokens of the pair; may be nil
	JWT    JWT
	Dial   func(ctx context.Context, address string) (net.Conn, error) // connects to the issuer of JWTs; nil for TCP
	Logger *zap.Logger                                                 // logs summaries of failures
	Now    func() time.Time                                            // nil for the system clock
}

const maxVerified = 4096 // maximum number of cached JWTs

// Authn authenticates callers.
type Authn struct {
	tokens   Lookup
	jwt      *verifier // nil if JWTs are not accepted
	limiter  *limiter
	failures *failures
	now      func() time.Time

	mu       sync.Mutex                     // guards cached
	cached   map[[sha256.Size]byte]verified // by the SHA-256 of the token
	keysDown error                          // of the last attempt to load the issuer's keys; guarded by mu
}

// New creates an Authn. It returns an error if the CA file or the file of keys cannot be read or is invalid.
func New(o Options) (*Authn, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authn{
		tokens: o.Tokens, limiter: newLimiter(), failures: newFailures(o.Logger), now: o.Now,
		cached: make(map[[sha256.Size]byte]verified),
	}
	if o.JWT.Issuer == "" {
		return a, nil
	}
	client, err := httpClient(o.JWT.KeysCA, o.Dial)
	if err != nil {
		return nil, err
	}
	a.jwt = &verifier{settings: o.JWT, now: o.Now, keys: &keys{
		file: o.JWT.KeysFile, url: o.JWT.KeysURL, issuer: o.JWT.Issuer, client: client, now: o.Now,
		loading: make(chan struct{}, 1),
	}}
	if o.JWT.KeysFile != "" {
		if err := a.jwt.keys.refresh(context.Background()); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// httpClient creates the HTTP client for the issuer's server. The client rejects redirects to another scheme, and more
// than three redirects.
func httpClient(ca string, dial func(context.Context, string) (net.Conn, error)) (*http.Client, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("CA of the issuer's server: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA of the issuer's server: no PEM certificate in %s", ca)
		}
	}
	transport := &http.Transport{
		TLSClientConfig: secure, Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: fetchTimeout, MaxResponseHeaderBytes: maxKeySet, ForceAttemptHTTP2: true,
	}
	if dial != nil {
		transport.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) }
	}
	return &http.Client{
		Timeout: fetchTimeout, Transport: transport,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			const most = 3
			if len(via) > most || via[0].URL.Scheme != req.URL.Scheme {
				return errors.New("too many redirects, or redirect to another scheme")
			}
			return nil
		},
	}, nil
}

// Run refreshes the issuer's keys and logs summaries of failures until ctx ends.
func (a *Authn) Run(ctx context.Context) {
	if a.jwt != nil {
		defer a.jwt.keys.client.CloseIdleConnections()
	}
	ticker := time.NewTicker(fileCheckInterval)
	defer ticker.Stop()
	for {
		if a.jwt != nil {
			err := a.jwt.keys.refresh(ctx)
			a.mu.Lock()
			a.keysDown = err
			a.mu.Unlock()
		}
		a.failures.check(a.now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Authenticate returns the identity of the caller. It returns nil if the call has no credentials. The error is an
// *Error. Failures are counted, in total and for the address of the caller.
func (a *Authn) Authenticate(ctx context.Context) (*access.Identity, error) {
	id, err := a.authenticate(ctx)
	if err == nil {
		return id, nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return nil, err
	}
	now, from := a.now(), addressOf(ctx)
	a.failures.add(e, from, now)
	if e.code == codes.Unauthenticated {
		a.limiter.failed(from, now)
		e.RetryAfter = a.limiter.wait(from, now)
	}
	return nil, e
}

func (a *Authn) authenticate(ctx context.Context) (*access.Identity, error) {
	token, err := bearerToken(ctx)
	if err != nil {
		return nil, err
	}
	if token == "" {
		return certificateIdentity(ctx)
	}
	sum := sha256.Sum256([]byte(token))
	if strings.HasPrefix(token, TokenPrefix) {
		return a.tokenIdentity(sum)
	}
	if a.jwt == nil {
		return nil, newError(CheckForm, "token does not start with "+TokenPrefix+", and this node accepts no "+
			"JWTs: auth.jwt.issuer is not set")
	}
	return a.jwtIdentity(ctx, token, sum)
}

func (a *Authn) tokenIdentity(sum [sha256.Size]byte) (*access.Identity, error) {
	if a.tokens == nil {
		return nil, newError(CheckToken, "this node has no token table")
	}
	principal, groups, expiry, ok := a.tokens(sum)
	if !ok {
		return nil, newError(CheckToken, "unknown token: it was revoked, or belongs to another pair")
	}
	if err := a.expired(expiry); err != nil {
		return nil, err
	}
	return &access.Identity{Principal: principal, Groups: groups, Method: access.MethodToken, Expired: func() error {
		now, _, expiry, ok := a.tokens(sum)
		if !ok || now != principal {
			return errStreamEnds("token was revoked")
		}
		if err := a.expired(expiry); err != nil {
			err.running = true
			return err
		}
		return nil
	}}, nil
}

func (a *Authn) expired(expiry time.Time) *Error {
	if now := a.now(); !expiry.IsZero() && !now.Before(expiry) {
		return errExpired(fmt.Sprintf("token expired at %s, %s ago", expiry.UTC().Format(time.RFC3339),
			now.Sub(expiry).Round(time.Second)))
	}
	return nil
}

// jwtIdentity returns the identity in a JWT. It caches a verified JWT until the JWT expires, the issuer's keys change,
// or the entry is evicted.
func (a *Authn) jwtIdentity(ctx context.Context, token string, sum [sha256.Size]byte) (*access.Identity, error) {
	now := a.now()
	a.mu.Lock()
	known, ok := a.cached[sum]
	a.mu.Unlock()
	if ok && known.version == a.jwt.keys.generation() && now.Before(known.expiry) {
		return known.identity, nil
	}
	if wait := a.limiter.wait(addressOf(ctx), now); wait > 0 {
		return nil, unchecked(CheckLimit, codes.ResourceExhausted, wait, "token not checked: too many invalid "+
			"tokens from this address; try again in "+max(wait, time.Second).Round(time.Second).String())
	}
	fresh, err := a.jwt.verify(ctx, token, true)
	if err != nil {
		return nil, err
	}
	fresh.identity.Expired = a.expiryCheck(token, *fresh) //nolint:contextcheck // also called after this call
	a.cache(sum, fresh)
	return fresh.identity, nil
}

// expiryCheck returns a function that returns an error when a JWT has expired or the issuer has withdrawn its
// key.
func (a *Authn) expiryCheck(token string, v verified) func() error {
	var mu sync.Mutex // guards v.version
	return func() error {
		if now := a.now(); !now.Before(v.expiry) {
			return errStreamEnds("JWT expired at " + v.expiry.Add(-a.jwt.settings.Skew).UTC().Format(time.RFC3339))
		}
		mu.Lock()
		defer mu.Unlock()
		generation := a.jwt.keys.generation()
		if generation == v.version {
			return nil
		}
		_, err := a.jwt.verify(context.Background(), token, false)
		if e, ok := errors.AsType[*Error](err); ok && e.code == codes.Unauthenticated {
			return errStreamEnds("key of the JWT was withdrawn by the issuer")
		}
		if err == nil { // otherwise the next call verifies it again, until the keys are available
			v.version = generation
		}
		return nil
	}
}

// cache caches a verified JWT. If the cache is full, it evicts an arbitrary entry.
func (a *Authn) cache(sum [sha256.Size]byte, v *verified) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.cached) >= maxVerified {
		for any := range a.cached {
			delete(a.cached, any)
			break
		}
	}
	a.cached[sum] = *v
}

// Wait returns how long callers from the address in ctx must wait, after too many failures, before the node verifies
// further JWTs from that address.
func (a *Authn) Wait(ctx context.Context) time.Duration {
	return a.limiter.wait(addressOf(ctx), a.now())
}

// Failures returns the number of failures for each check.
func (a *Authn) Failures() map[Check]uint64 { return a.failures.counts() }

// KeysError returns descriptions of two problems. many is not empty if at least ManyFailures failures occurred in
// the last minute. keys is not empty if the last attempt to load the issuer's keys failed.
func (a *Authn) KeysError() (many, keys string) {
	if n, details := a.failures.check(a.now()); n >= ManyFailures {
		many = details
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keysDown != nil {
		keys = a.keysDown.Error()
	}
	return many, keys
}
