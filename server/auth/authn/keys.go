// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	fileCheckInterval = time.Second
	refetchAfter      = 5 * time.Second // minimum interval between fetches caused by unknown keys
	// refreshAfter is the age at which fetched keys are fetched again. Until then, a withdrawn key may still be
	// accepted. If the fetch fails, the old keys remain in use.
	refreshAfter = 10 * time.Minute
	fetchTimeout = 10 * time.Second
	maxKeySet    = 1 << 20 // bytes
	maxKeys      = 100
	minRSABits   = 2048
)

// keys is the key set of the issuer. It is read from a file, or fetched from a URL or from the URL in the
// issuer's discovery document.
type keys struct {
	file, url, issuer string
	client            *http.Client
	now               func() time.Time

	loading chan struct{} // capacity 1: held while the keys are read or fetched

	mu      sync.Mutex // guards the fields below
	set     []jose.JSONWebKey
	version uint64 // incremented with each change of set
	digest  [sha256.Size]byte
	tried   time.Time // time of the last attempt to read or fetch the keys
	loaded  time.Time // time of the last successful attempt
	err     error     // error of the last attempt
	seen    os.FileInfo
}

var errNoKey = errors.New("issuer has no key with this ID")

// unavailableError is returned if the keys are unavailable, or if the last fetch is too recent to fetch them again.
type unavailableError struct {
	cause error
	wait  time.Duration
}

func (e *unavailableError) Error() string { return e.cause.Error() }
func (e *unavailableError) Unwrap() error { return e.cause }

// find returns the keys with the given ID and the version of the key set. An empty ID selects all keys. If no key
// matches and fetch is set, find fetches the keys again.
func (k *keys) find(ctx context.Context, id string, fetch bool) ([]jose.JSONWebKey, uint64, error) {
	found, version, err := k.lookup(id)
	if len(found) == 0 && fetch {
		if err := k.load(ctx, k.again()); err != nil {
			return nil, 0, err
		}
		found, version, err = k.lookup(id)
	}
	switch {
	case len(found) > 0:
		return found, version, nil
	case err != nil: // newer keys, which may contain this one, are unavailable
		return nil, 0, &unavailableError{cause: err, wait: refetchAfter}
	}
	return nil, 0, errNoKey
}

func (k *keys) again() time.Duration {
	if k.file != "" {
		return fileCheckInterval
	}
	return refetchAfter
}

// lookup returns the loaded keys with the given ID, and the error of the last attempt to load newer keys. An
// empty ID selects all keys.
func (k *keys) lookup(id string) (found []jose.JSONWebKey, version uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.set {
		if id == "" || k.set[i].KeyID == id {
			found = append(found, k.set[i])
		}
	}
	return found, k.version, k.err
}

func (k *keys) generation() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.version
}

// load reads or fetches the keys, and stores the result or the error in k. It does nothing if the last attempt is
// less than `after` ago. In that case, it returns nil if a concurrent call has made that attempt, or if the keys are
// in a file. Otherwise, it returns an *unavailableError with the delay until the next attempt. It also returns an
// *unavailableError if ctx ends.
func (k *keys) load(ctx context.Context, after time.Duration) error {
	asked := k.now()
	select {
	case k.loading <- struct{}{}:
		defer func() { <-k.loading }()
	case <-ctx.Done():
		return &unavailableError{cause: ctx.Err(), wait: time.Second}
	}
	now := k.now()
	k.mu.Lock()
	tried, err := k.tried, k.err
	k.mu.Unlock()
	if !tried.IsZero() && now.Sub(tried) < after {
		switch {
		case tried.After(asked), k.file != "":
			return nil // a concurrent call has loaded the keys, or the file was read recently
		case err == nil:
			err = errors.New("fetched recently")
		}
		return &unavailableError{cause: err, wait: after - now.Sub(tried)}
	}
	k.read(ctx)
	return nil
}

// read reads or fetches the keys, and uses them if they are valid. The caller must hold loading.
func (k *keys) read(ctx context.Context) {
	// All waiting calls use this fetch: the end of the context of one call must not cancel it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
	defer cancel()
	var raw []byte
	var err error
	if k.file != "" {
		raw, err = k.readFile()
	} else {
		raw, err = k.fetch(ctx)
	}
	if raw == nil && err == nil {
		return // the file is unchanged
	}
	k.parse(raw, err)
}

// readFile reads the file of keys. It returns nil if the file has not changed.
func (k *keys) readFile() ([]byte, error) {
	info, err := os.Stat(k.file)
	k.mu.Lock()
	k.tried = k.now()
	same := err == nil && k.err == nil && k.seen != nil && os.SameFile(k.seen, info) &&
		k.seen.ModTime().Equal(info.ModTime()) && k.seen.Size() == info.Size()
	k.seen = info
	k.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("keys of the issuer: %w", err)
	}
	if same {
		return nil, nil
	}
	if info.Size() > maxKeySet {
		return nil, fmt.Errorf("keys of the issuer: %s has more than 1 MiB", k.file)
	}
	raw, err := os.ReadFile(k.file)
	if err != nil {
		return nil, fmt.Errorf("keys of the issuer: %w", err)
	}
	return raw, nil
}

func (k *keys) fetch(ctx context.Context) ([]byte, error) {
	url := k.url
	if url == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, k.client), k.issuer)
		if err != nil {
			return nil, fmt.Errorf("discovery document of issuer %s: %w", k.issuer, err)
		}
		var document struct {
			JWKS string `json:"jwks_uri"`
		}
		if err := provider.Claims(&document); err != nil || document.JWKS == "" {
			return nil, fmt.Errorf("discovery document of issuer %s has no jwks_uri", k.issuer)
		}
		url = document.JWKS
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("keys of the issuer: %w", err)
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("keys of the issuer: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // all required data was read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("keys of the issuer: response of %s: %s", url, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("keys of the issuer: %w", err)
	}
	if len(raw) > maxKeySet {
		return nil, fmt.Errorf("keys of the issuer: %s has more than 1 MiB", url)
	}
	return raw, nil
}

// parse replaces the keys with those in raw. If err is not nil or raw is invalid, it records the error, and the old
// keys remain in use.
func (k *keys) parse(raw []byte, err error) {
	var set []jose.JSONWebKey
	if err == nil {
		set, err = parseKeys(raw)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.err = k.now(), err
	if err != nil {
		return
	}
	k.loaded = k.tried
	if digest := sha256.Sum256(raw); digest != k.digest {
		k.set, k.digest = set, digest
		k.version++
	}
}

// parseKeys returns the keys in raw that can be used for verification: they are public, asymmetric and long
// enough.
func parseKeys(raw []byte) ([]jose.JSONWebKey, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&document); err != nil {
		return nil, fmt.Errorf("keys of the issuer: not a JSON Web Key Set: %w", err)
	}
	if len(document.Keys) > maxKeys {
		return nil, fmt.Errorf("keys of the issuer: %d keys, maximum is %d", len(document.Keys), maxKeys)
	}
	var set []jose.JSONWebKey
	for _, one := range document.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(one) != nil {
			continue // the type of the key is not supported
		}
		if public := key.Public(); usableKey(&public) {
			set = append(set, public)
		}
	}
	if len(set) == 0 {
		return nil, errors.New("keys of the issuer: no key for signature verification")
	}
	return set, nil
}

func usableKey(key *jose.JSONWebKey) bool {
	if !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig" {
		return false
	}
	if public, is := key.Key.(*rsa.PublicKey); is {
		return public.N.BitLen() >= minRSABits
	}
	return true
}

// refresh reads the file if it has changed, or fetches the keys if they are too old. It returns the error of the last
// attempt, even if older keys are still in use.
func (k *keys) refresh(ctx context.Context) error {
	k.mu.Lock()
	due := fileCheckInterval
	switch {
	case k.file != "":
	case k.err == nil && !k.loaded.IsZero():
		due = refreshAfter
	default:
		due = refetchAfter
	}
	idle := k.tried.IsZero() || k.now().Sub(k.tried) >= due
	k.mu.Unlock()
	if idle {
		_ = k.load(ctx, due) // fails only if the last attempt is too recent or ctx ends
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
