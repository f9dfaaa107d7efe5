// SPDX-License-Identifier: Apache-2.0

// Package issuer implements an issuer of JWTs for tests. It signs tokens, and serves its OpenID discovery document and
// its JSON Web Key Set.
package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

// Audience is the default audience of the tokens.
const Audience = "lockstep"

// Claims are claims of a token. They are added to the default claims of Token or replace them; a nil value removes a
// claim.
type Claims map[string]any

// Issuer issues tokens. It is safe for concurrent use.
type Issuer struct {
	// URL is the issuer's name and address.
	URL string

	t      *testing.T
	server *http.Server

	mu      sync.Mutex // guards all fields below
	keys    []jose.JSONWebKey
	made    int
	fetches int
	down    bool
}

// New creates an issuer with one key, which serves on a free port until the test ends.
func New(t *testing.T) *Issuer {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return On(t, l)
}

// On creates an issuer with one key, which serves on the listener l until the test ends.
func On(t *testing.T, l net.Listener) *Issuer {
	t.Helper()
	i := &Issuer{URL: "http://" + l.Addr().String(), t: t}
	i.Rotate()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", i.serve(func() any {
		return map[string]any{"issuer": i.URL, "jwks_uri": i.KeysURL()}
	}))
	mux.HandleFunc("GET /keys", i.serve(func() any {
		i.fetches++
		return i.public()
	}))
	i.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	done := make(chan error, 1)
	go func() { done <- i.server.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, i.server.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	return i
}

func (i *Issuer) serve(label func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.down {
			http.Error(w, "unavailable", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(label()) // on an error, the client has disconnected
	}
}

// KeysURL returns the URL of the keys.
func (i *Issuer) KeysURL() string { return i.URL + "/keys" }

// SetDown makes the issuer respond to every request with an error if down is true, and normally if it is false.
func (i *Issuer) SetDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// Fetches returns the number of successful requests for the keys.
func (i *Issuer) Fetches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetches
}

// Rotate creates a new key, which signs tokens from now on. The previous keys stay in the set.
func (i *Issuer) Rotate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(i.t, err)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made++
	i.keys = append(i.keys, jose.JSONWebKey{
		Key: key, KeyID: fmt.Sprint("key-", i.made), Algorithm: string(jose.ES256), Use: "sig",
	})
}

// Revoke removes all keys from the set except the newest one.
func (i *Issuer) Revoke() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = i.keys[len(i.keys)-1:]
}

// public returns the set of keys. The caller holds mu.
func (i *Issuer) public() jose.JSONWebKeySet {
	var set jose.JSONWebKeySet
	for _, k := range i.keys {
		set.Keys = append(set.Keys, k.Public())
	}
	return set
}

// KeysFile writes the set of keys to the file at path, or to a new file if path is empty, and returns the path.
func (i *Issuer) KeysFile(path string) string {
	i.mu.Lock()
	raw, err := json.Marshal(i.public())
	i.mu.Unlock()
	require.NoError(i.t, err)
	if path == "" {
		path = filepath.Join(i.t.TempDir(), "keys.json")
	}
	require.NoError(i.t, os.WriteFile(path+".new", raw, 0o600))
	require.NoError(i.t, os.Rename(path+".new", path))
	return path
}

// Token returns a signed token of a principal. The token expires in an hour, or at the time in more.
func (i *Issuer) Token(principal string, more Claims) string {
	i.mu.Lock()
	key := i.keys[len(i.keys)-1]
	i.mu.Unlock()
	return i.SignedBy(jose.SigningKey{Algorithm: jose.ES256, Key: key}, principal, more)
}

// PublicKey returns the newest public key.
func (i *Issuer) PublicKey() crypto.PublicKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keys[len(i.keys)-1].Public().Key
}

// SignedBy is like Token, but signs with another key.
func (i *Issuer) SignedBy(key jose.SigningKey, principal string, more Claims) string {
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	require.NoError(i.t, err)
	jws, err := signer.Sign(i.Payload(principal, more))
	require.NoError(i.t, err)
	token, err := jws.CompactSerialize()
	require.NoError(i.t, err)
	return token
}

// Payload returns the claims of a token, as JSON.
func (i *Issuer) Payload(principal string, more Claims) []byte {
	now := time.Now()
	claims := Claims{
		"iss": i.URL, "aud": Audience, "sub": principal, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(claims, more)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	raw, err := json.Marshal(claims)
	require.NoError(i.t, err)
	return raw
}
