// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/test/issuer"
)

// clock is a manual clock, so that refills of limits do not depend on the speed of the test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// call returns the context of a call from an address with a token. If token is empty, the call has no token.
func call(t *testing.T, address, token string) context.Context {
	addr, err := net.ResolveTCPAddr("tcp", address)
	require.NoError(t, err)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: addr})
	if token != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
	}
	return ctx
}

const testAddress = "192.0.2.7:4711"

// fixture returns an Authn that accepts the tokens of an issuer, and the clock of that Authn.
func fixture(t *testing.T, i *issuer.Issuer, change func(*Options)) (*Authn, *clock) {
	c := &clock{at: time.Now()}
	o := Options{Logger: zap.NewNop(), Now: c.now, JWT: JWT{
		Issuer: i.URL, Audience: issuer.Audience, PrincipalClaim: "sub", GroupsClaim: "groups", Skew: time.Minute,
	}}
	if change != nil {
		change(&o)
	}
	a, err := New(o)
	require.NoError(t, err)
	return a, c
}

// reasonOf returns the reason in the status of an error.
func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, is := d.(*errdetails.ErrorInfo); is {
			return info.GetReason()
		}
	}
	return ""
}

// An invalid token is rejected, and the error identifies the check that failed. No error contains the token.
func TestJWT(t *testing.T) {
	i := issuer.New(t)
	other := issuer.New(t)
	unknown, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	public, err := x509.MarshalPKIXPublicKey(i.PublicKey())
	require.NoError(t, err)
	good := i.Token("alice", issuer.Claims{"groups": []string{"ops", "dev"}})
	parts := strings.Split(good, ".")
	b64 := base64.RawURLEncoding
	none := b64.EncodeToString([]byte(`{"alg":"none","kid":"key-1"}`)) + "." + b64.EncodeToString(i.Payload("alice", nil))
	now := time.Now()

	for name, tt := range map[string]struct {
		token    string
		check    Check // empty if the token is valid
		wantText string
	}{
		"good":               {token: good},
		"several audiences":  {token: i.Token("alice", issuer.Claims{"aud": []string{"x", issuer.Audience}})},
		"just expired, skew": {token: i.Token("alice", issuer.Claims{"exp": now.Add(-30 * time.Second).Unix()})},
		"soon valid, skew":   {token: i.Token("alice", issuer.Claims{"nbf": now.Add(30 * time.Second).Unix()})},
		"fractional exp": {token: i.Token("alice", issuer.Claims{
			"exp": float64(now.UnixMilli())/1000 + 60,
		})},
		"exp in the year 9999": {token: i.Token("alice", issuer.Claims{"exp": 253402300799})},
		"nbf in the year 2300": {
			token: i.Token("alice", issuer.Claims{"nbf": 10413792000}), check: CheckTime, wantText: "not valid before 2300-",
		},
		"expired": {
			token: i.Token("alice", issuer.Claims{"exp": now.Add(-2 * time.Minute).Unix()}), check: CheckTime,
			wantText: "expired at",
		},
		"not yet valid": {
			token: i.Token("alice", issuer.Claims{"nbf": now.Add(time.Hour).Unix()}), check: CheckTime,
			wantText: "not valid before",
		},
		"wrong audience": {
			token: i.Token("alice", issuer.Claims{"aud": "billing"}), check: CheckAudience,
			wantText: `"billing"`,
		},
		"no audience":  {token: i.Token("alice", issuer.Claims{"aud": nil}), check: CheckAudience},
		"wrong issuer": {token: i.Token("alice", issuer.Claims{"iss": "https://elsewhere"}), check: CheckIssuer},
		"other issuer": {token: other.Token("alice", nil), check: CheckSignature}, // the keys have the same ID
		"wrong key": {
			token: i.SignedBy(jose.SigningKey{
				Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: unknown, KeyID: "key-1"},
			}, "alice", nil), check: CheckSignature,
		},
		"unknown key": {
			token: i.SignedBy(jose.SigningKey{
				Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: unknown, KeyID: "key-99"},
			}, "alice", nil), check: CheckUnavailable, wantText: "fetched recently",
		},
		"no key id": {
			token: i.SignedBy(jose.SigningKey{Algorithm: jose.ES256, Key: unknown}, "alice", nil), check: CheckSignature,
		},
		"alg none":            {token: none + ".", check: CheckAlgorithm, wantText: "none"},
		"alg none, signature": {token: none + "." + parts[2], check: CheckAlgorithm},
		"HS256 with the public key": {
			token: i.SignedBy(jose.SigningKey{
				Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: public, KeyID: "key-1"},
			}, "alice", nil), check: CheckAlgorithm, wantText: "HS256",
		},
		"payload changed": {
			token: parts[0] + "." + b64.EncodeToString(i.Payload("root", nil)) + "." + parts[2], check: CheckSignature,
		},
		"truncated":               {token: parts[0] + "." + parts[1], check: CheckForm},
		"no signature":            {token: parts[0] + "." + parts[1] + ".", check: CheckSignature},
		"garbage":                 {token: "garbage", check: CheckForm},
		"dots":                    {token: "...", check: CheckForm},
		"no exp":                  {token: i.Token("alice", issuer.Claims{"exp": nil}), check: CheckClaims, wantText: "exp"},
		"exp is a string":         {token: i.Token("alice", issuer.Claims{"exp": "tomorrow"}), check: CheckForm},
		"exp out of range":        {token: i.Token("alice", issuer.Claims{"exp": 1e18}), check: CheckClaims},
		"no sub":                  {token: i.Token("alice", issuer.Claims{"sub": nil}), check: CheckClaims, wantText: "sub"},
		"empty principal":         {token: i.Token("", nil), check: CheckClaims},
		"anonymous principal":     {token: i.Token(access.Anonymous, nil), check: CheckClaims},
		"long principal":          {token: i.Token(strings.Repeat("x", 256), nil), check: CheckClaims},
		"line break in principal": {token: i.Token("alice\nroot", nil), check: CheckClaims},
		"group is a number":       {token: i.Token("alice", issuer.Claims{"groups": []any{"ops", 7}}), check: CheckClaims},
		"groups are a map":        {token: i.Token("alice", issuer.Claims{"groups": map[string]any{}}), check: CheckClaims},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := fixture(t, i, nil)
			require.NoError(t, a.jwt.keys.refresh(t.Context()))
			id, err := a.Authenticate(call(t, testAddress, tt.token))
			if tt.check == "" {
				require.NoError(t, err)
				require.Equal(t, "alice", id.Principal)
				require.Equal(t, access.MethodJWT, id.Method)
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.check, e.Check, e.Error())
			require.ErrorIs(t, err, access.ErrUnauthenticated)
			require.Contains(t, err.Error(), tt.wantText)
			require.NotContains(t, err.Error(), tt.token)
			if last := tt.token[strings.LastIndex(tt.token, ".")+1:]; len(last) > 10 {
				require.NotContains(t, err.Error(), last)
			}
			require.Equal(t, uint64(1), a.Failures()[tt.check])
		})
	}
	a, _ := fixture(t, i, nil)
	id, err := a.Authenticate(call(t, testAddress, good))
	require.NoError(t, err)
	require.Equal(t, []string{"ops", "dev"}, id.Groups)
	again, err := a.Authenticate(call(t, testAddress, good))
	require.NoError(t, err)
	require.Same(t, id, again, "the identity is cached")
}

// Claims may be nested in other claims, such as roles in Keycloak, and their names may contain dots.
func TestClaimPaths(t *testing.T) {
	claims := map[string]any{
		"sub": "a", "https://example.com/groups": "b", "realm_access": map[string]any{"roles": "c", "x.y": "d"},
	}
	for path, want := range map[string]any{
		"sub": "a", "https://example.com/groups": "b", "realm_access.roles": "c", "realm_access.x.y": "d",
		"realm_access.nothing": nil, "sub.x": nil, "": nil, ".": nil,
	} {
		require.Equal(t, want, claim(claims, path), path)
	}
}

// A key that the node does not know is fetched from the issuer. When the issuer withdraws a key, the tokens signed
// with that key become invalid.
func TestKeyRotation(t *testing.T) {
	for name, file := range map[string]bool{"URL": false, "file": true} {
		t.Run(name, func(t *testing.T) {
			i := issuer.New(t)
			path := ""
			a, c := fixture(t, i, func(o *Options) {
				if file {
					path = i.KeysFile("")
					o.JWT.KeysFile = path
				}
			})
			rotate := func() {
				i.Rotate()
				if file {
					i.KeysFile(path)
				}
			}
			first, err := a.Authenticate(call(t, testAddress, i.Token("alice", nil)))
			require.NoError(t, err)
			require.NoError(t, first.Expired())
			rotate()
			c.forward(refetchAfter)
			_, err = a.Authenticate(call(t, testAddress, i.Token("alice", nil)))
			require.NoError(t, err)
			require.NoError(t, first.Expired(), "the old key is still published")

			i.Revoke()
			if file {
				i.KeysFile(path)
			}
			c.forward(refreshAfter)
			require.NoError(t, a.jwt.keys.refresh(t.Context()))
			require.Equal(t, "TOKEN_EXPIRED", reasonOf(first.Expired()))
			require.Contains(t, first.Expired().Error(), "withdrawn")
		})
	}
}

// Tokens with invented key IDs do not cause frequent requests to the issuer. Until the next fetch, such tokens are
// rejected with AUTH_UNAVAILABLE.
func TestUnknownKeysAreFetchedRarely(t *testing.T) {
	i := issuer.New(t)
	a, c := fixture(t, i, func(o *Options) { o.JWT.KeysURL = i.KeysURL() })
	unknown, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	made := i.SignedBy(jose.SigningKey{
		Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: unknown, KeyID: "made-up"},
	}, "alice", nil)
	_, err = a.Authenticate(call(t, testAddress, made))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Equal(t, 1, i.Fetches())
	for range 20 {
		_, err = a.Authenticate(call(t, testAddress, made))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, "AUTH_UNAVAILABLE", reasonOf(err))
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Positive(t, e.RetryAfter)
		require.LessOrEqual(t, e.RetryAfter, refetchAfter)
	}
	require.Equal(t, 1, i.Fetches())
	c.forward(refetchAfter)
	_, err = a.Authenticate(call(t, testAddress, made))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Equal(t, 2, i.Fetches())
}

// While no keys are available, tokens are neither accepted nor reported as invalid. If the issuer becomes
// unavailable after a fetch, tokens signed with the fetched keys are accepted.
func TestIssuerDown(t *testing.T) {
	i := issuer.New(t)
	i.SetDown(true)
	a, c := fixture(t, i, nil)
	_, err := a.Authenticate(call(t, testAddress, i.Token("alice", nil)))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Error(t, a.jwt.keys.refresh(t.Context()))

	i.SetDown(false)
	c.forward(refetchAfter)
	require.NoError(t, a.jwt.keys.refresh(t.Context()))
	id, err := a.Authenticate(call(t, testAddress, i.Token("alice", nil)))
	require.NoError(t, err)

	i.SetDown(true)
	c.forward(refreshAfter)
	require.Error(t, a.jwt.keys.refresh(t.Context()))
	require.NoError(t, id.Expired())
	_, err = a.Authenticate(call(t, testAddress, i.Token("bob", nil)))
	require.NoError(t, err, "the key is known")
	i.Rotate()
	_, err = a.Authenticate(call(t, testAddress, i.Token("bob", nil)))
	require.Equal(t, codes.Unavailable, status.Code(err), "the token may be valid")
}

// A token signed with a withdrawn key is accepted while the issuer is unavailable, and rejected after the next
// fetch.
func TestRevokedKeyWhileIssuerIsDown(t *testing.T) {
	i := issuer.New(t)
	a, c := fixture(t, i, nil)
	id, err := a.Authenticate(call(t, testAddress, i.Token("alice", nil)))
	require.NoError(t, err)
	i.Rotate()
	i.Revoke()
	c.forward(refreshAfter)
	require.NoError(t, a.jwt.keys.refresh(t.Context()))

	i.SetDown(true)
	c.forward(refreshAfter)
	require.Error(t, a.jwt.keys.refresh(t.Context()))
	require.NoError(t, id.Expired())
	i.SetDown(false)
	c.forward(refetchAfter)
	require.NoError(t, a.jwt.keys.refresh(t.Context()))
	require.Equal(t, "TOKEN_EXPIRED", reasonOf(id.Expired()))
}

// An identity expires with its token. After that, the token is not accepted again.
func TestJWTExpires(t *testing.T) {
	i := issuer.New(t)
	a, c := fixture(t, i, nil)
	token := i.Token("alice", nil)
	id, err := a.Authenticate(call(t, testAddress, token))
	require.NoError(t, err)
	c.forward(time.Hour)
	require.NoError(t, id.Expired(), "within the clock skew")
	c.forward(2 * time.Minute)
	require.Equal(t, "TOKEN_EXPIRED", reasonOf(id.Expired()))
	_, err = a.Authenticate(call(t, testAddress, token))
	require.Equal(t, "TOKEN_EXPIRED", reasonOf(err))
}

// Tokens created by the pair are found by their SHA-256. They can expire and be revoked.
func TestTokens(t *testing.T) {
	i := issuer.New(t)
	known := map[[sha256.Size]byte]time.Time{}
	a, c := fixture(t, i, func(o *Options) {
		o.Tokens = func(sum [sha256.Size]byte) (string, []string, time.Time, bool) {
			expiry, ok := known[sum]
			return "robot", []string{"machines"}, expiry, ok
		}
	})
	sum := sha256.Sum256([]byte("lsk_good"))
	known[sum] = time.Time{}
	id, err := a.Authenticate(call(t, testAddress, "lsk_good"))
	require.NoError(t, err)
	require.Equal(t, "robot", id.Principal)
	require.Equal(t, []string{"machines"}, id.Groups)
	require.Equal(t, access.MethodToken, id.Method)
	require.NoError(t, id.Expired())

	known[sum] = c.now().Add(time.Minute)
	require.NoError(t, id.Expired())
	c.forward(time.Minute)
	require.Equal(t, "TOKEN_EXPIRED", reasonOf(id.Expired()))
	_, err = a.Authenticate(call(t, testAddress, "lsk_good"))
	require.Equal(t, "TOKEN_EXPIRED", reasonOf(err))
	delete(known, sum)
	require.Error(t, id.Expired())
	require.Contains(t, id.Expired().Error(), "revoked")
	_, err = a.Authenticate(call(t, testAddress, "lsk_good"))
	require.Equal(t, "UNAUTHENTICATED", reasonOf(err))
	require.NotContains(t, err.Error(), "good")
}

// A node without JWT settings rejects tokens as unauthenticated. A call without a token has no identity.
func TestJWTNotConfigured(t *testing.T) {
	i := issuer.New(t)
	a, _ := fixture(t, i, func(o *Options) { o.JWT = JWT{} })
	_, err := a.Authenticate(call(t, testAddress, i.Token("alice", nil)))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	_, err = a.Authenticate(call(t, testAddress, "lsk_x"))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	id, err := a.Authenticate(call(t, testAddress, ""))
	require.NoError(t, err)
	require.Nil(t, id)
}

// An address that sends invalid tokens is blocked for some time. Tokens from that address that were already
// verified, and tokens from other addresses, are not affected.
func TestFailureLimit(t *testing.T) {
	i := issuer.New(t)
	first, _ := fixture(t, i, func(o *Options) {
		sum := sha256.Sum256([]byte("lsk_good"))
		o.Tokens = func(s [sha256.Size]byte) (string, []string, time.Time, bool) {
			return "robot", nil, time.Time{}, s == sum
		}
	})
	known := i.Token("alice", nil)
	_, err := first.Authenticate(call(t, testAddress, known))
	require.NoError(t, err)
	for range int(maxFailures) {
		_, err = first.Authenticate(call(t, testAddress, "lsk_bad"))
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	}
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Positive(t, e.RetryAfter, "the error contains a retry delay")

	fresh := i.Token("bob", nil)
	_, err = first.Authenticate(call(t, testAddress, fresh))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, "AUTH_UNAVAILABLE", reasonOf(err))
	for _, good := range []string{known, "lsk_good"} {
		_, err = first.Authenticate(call(t, testAddress, good))
		require.NoError(t, err)
	}
	_, err = first.Authenticate(call(t, "192.0.2.8:4711", fresh))
	require.NoError(t, err, "another address")

	a, c := fixture(t, i, nil)
	for range int(maxFailures) {
		_, err = a.Authenticate(call(t, "[2001:db8::1]:1", "bad"))
		require.Error(t, err)
	}
	_, err = a.Authenticate(call(t, "[2001:db8::ffff:1:2]:9", fresh))
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "the same network")
	_, err = a.Authenticate(call(t, "[2001:db8:0:1::1]:9", fresh))
	require.NoError(t, err, "another network")
	c.forward(time.Second)
	again := i.Token("carol", nil)
	_, err = a.Authenticate(call(t, "[2001:db8::1]:9", again))
	require.NoError(t, err, "one second later")
	many, _ := a.KeysError()
	require.Empty(t, many)
}

// The limiter stores at most maxAddresses addresses.
func TestFailureLimitIsBounded(t *testing.T) {
	l, now := newLimiter(), time.Now()
	bad := prefixOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1})
	for range int(maxFailures) {
		l.failed(bad, now)
	}
	for n := range 3 * maxAddresses {
		l.failed(prefixOf(&net.TCPAddr{IP: net.IPv4(10, byte(n>>16), byte(n>>8), byte(n)), Port: 1}), now)
	}
	require.LessOrEqual(t, len(l.addresses), maxAddresses)
	require.Positive(t, l.wait(bad, now), "the address with the most failures is kept")
}

// ManyFailures invalid tokens within a minute are reported for a minute.
func TestManyFailures(t *testing.T) {
	i := issuer.New(t)
	a, c := fixture(t, i, nil)
	for range ManyFailures {
		_, err := a.Authenticate(call(t, testAddress, "lsk_bad"))
		require.Error(t, err)
	}
	many, _ := a.KeysError()
	require.Contains(t, many, "from 192.0.2.7")
	c.forward(time.Minute)
	many, _ = a.KeysError()
	require.Empty(t, many)
}

// Only a single, well-formed authorization header is accepted.
func TestAuthorizationHeader(t *testing.T) {
	for value, want := range map[string]string{
		"Bearer abc": "abc", "bearer abc": "abc", "BEARER  a.b-c_d~e+f/g== ": "a.b-c_d~e+f/g==",
		"Bearer": "", "Bearer ": "", "Basic abc": "", "abc": "", "": "", "Bearer a b": "", "Bearer a\tb": "",
		"Bearer ä": "", "Bearer " + strings.Repeat("x", maxTokenBytes+1): "",
	} {
		token, err := parseHeader(value)
		require.Equal(t, want, token, value)
		require.Equal(t, want == "", err != nil, value)
	}
	ctx := metadata.NewIncomingContext(
		t.Context(),
		metadata.Pairs("authorization", "Bearer a", "authorization", "Bearer b"),
	)
	_, err := bearerToken(ctx)
	require.Error(t, err)
	require.Contains(t, err.Error(), "than one")
}

// Authenticate rejects any invalid token with a status of limited length.
func FuzzToken(f *testing.F) {
	a, err := New(Options{Logger: zap.NewNop(), JWT: JWT{
		Issuer: "https://id.example.com", Audience: "lockstep", KeysURL: "http://127.0.0.1:1/", PrincipalClaim: "sub",
	}})
	require.NoError(f, err)
	for _, seed := range []string{
		"", "Bearer ", "Bearer a.b.c", "Bearer lsk_x", "Bearer eyJhbGciOiJub25lIn0.e30.", "Basic eDp5",
		"Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.e30.AAAA",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", value))
		id, err := a.Authenticate(ctx)
		require.Nil(t, id)
		require.Error(t, err)
		code := status.Code(err)
		require.True(t, code == codes.Unauthenticated || code == codes.Unavailable || code == codes.ResourceExhausted, code)
		require.Less(t, len(err.Error()), 2000)
	})
}
