// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// JWT configures which JWTs are accepted.
type JWT struct {
	Issuer   string // required issuer of tokens; if empty, JWTs are not accepted
	Audience string // must be one of a token's audiences
	// KeysURL or KeysFile is the location of the issuer's keys, a JSON Web Key Set. If both are empty, the URL in
	// the issuer's discovery document is used.
	KeysURL, KeysFile           string
	KeysCA                      string        // file with the CAs for the issuer's server; empty for the system's CAs
	PrincipalClaim, GroupsClaim string        // dotted paths of claims, such as realm_access.roles
	Skew                        time.Duration // tolerated difference between the clocks of the issuer and this node
}

const (
	maxGroups = 256 // maximum number of groups in a token
	quoted    = 100 // maximum size of token content in an error
)

// algorithms returns the accepted signature algorithms and their names. All of them are asymmetric.
func algorithms() (names []string, algs []jose.SignatureAlgorithm) {
	algs = []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512,
		jose.EdDSA,
	}
	for _, a := range algs {
		names = append(names, string(a))
	}
	return names, algs
}

type verifier struct {
	settings JWT
	keys     *keys
	now      func() time.Time
}

type verified struct {
	identity *access.Identity
	expiry   time.Time // includes the skew
	version  uint64    // version of the keys
}

// verify checks the signature and the claims of a token. If fetch is set and the key is unknown, it fetches the
// issuer's keys again.
func (v *verifier) verify(ctx context.Context, raw string, fetch bool) (*verified, error) {
	names, algs := algorithms()
	if _, err := jose.ParseSignedCompact(raw, algs); err != nil {
		if other, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
			return nil, newError(CheckAlgorithm, fmt.Sprintf("JWT is signed with %.20q; only asymmetric algorithms are "+
				"accepted: %s", string(other.Got), strings.Join(names, ", ")))
		}
		return nil, newError(CheckForm, "token is neither a token of the pair nor a signed JWT")
	}
	set := &callKeys{keys: v.keys, algs: algs, fetch: fetch}
	token, err := oidc.NewVerifier(v.settings.Issuer, set, &oidc.Config{
		SupportedSigningAlgs: names, // checkClaims checks the skipped claims, with specific errors
		SkipClientIDCheck:    true, SkipExpiryCheck: true, SkipIssuerCheck: true,
	}).Verify(ctx, raw)
	switch {
	case set.err != nil:
		return nil, set.err
	case err != nil:
		return nil, newError(CheckForm, "claims of the JWT cannot be decoded")
	}
	return v.checkClaims(token, set.version)
}

// checkClaims checks the claims of a token with a valid signature, and returns the identity that the token proves.
func (v *verifier) checkClaims(token *oidc.IDToken, version uint64) (*verified, error) {
	var claims map[string]any
	var times struct {
		Expiry    *json.Number `json:"exp"`
		NotBefore *json.Number `json:"nbf"`
	}
	if token.Claims(&claims) != nil || token.Claims(&times) != nil {
		return nil, newError(CheckForm, "claims of the JWT cannot be decoded")
	}
	if token.Issuer != v.settings.Issuer {
		return nil, newError(CheckIssuer, fmt.Sprintf("JWT has issuer %.*q; auth.jwt.issuer is %q", quoted,
			token.Issuer, v.settings.Issuer))
	}
	if !slices.Contains(token.Audience, v.settings.Audience) {
		return nil, newError(CheckAudience, fmt.Sprintf("JWT has audience %.*q; auth.jwt.audience is %q", quoted,
			strings.Join(token.Audience, ", "), v.settings.Audience))
	}
	out := &verified{version: version}
	now := v.now()
	if times.Expiry == nil {
		return nil, newError(CheckClaims, "JWT has no exp claim")
	}
	expiry, ok := instant(times.Expiry)
	if !ok {
		return nil, newError(CheckClaims, "exp claim of the JWT is not a time")
	}
	if out.expiry = expiry.Add(v.settings.Skew); !now.Before(out.expiry) {
		return nil, errExpired(fmt.Sprintf("JWT expired at %s, %s ago", expiry.UTC().Format(time.RFC3339),
			now.Sub(expiry).Round(time.Second)))
	}
	if times.NotBefore != nil {
		begin, ok := instant(times.NotBefore)
		if !ok {
			return nil, newError(CheckClaims, "nbf claim of the JWT is not a time")
		}
		if now.Add(v.settings.Skew).Before(begin) {
			return nil, newError(CheckTime, fmt.Sprintf("JWT is not valid before %s, in %s",
				begin.UTC().Format(time.RFC3339), begin.Sub(now).Round(time.Second)))
		}
	}
	return out, v.name(out, claims)
}

func (v *verifier) name(out *verified, claims map[string]any) error {
	principal, ok := claim(claims, v.settings.PrincipalClaim).(string)
	if !ok {
		return newError(CheckClaims, fmt.Sprintf("claim %s of the JWT (auth.jwt.principal-claim) is missing or not a string",
			v.settings.PrincipalClaim))
	}
	if reason := nameProblem(principal); reason != "" {
		return newError(CheckClaims, fmt.Sprintf("claim %s of the JWT (auth.jwt.principal-claim) %s",
			v.settings.PrincipalClaim, reason))
	}
	groups, reason := groupsOf(claim(claims, v.settings.GroupsClaim))
	if reason != "" {
		return newError(CheckClaims, fmt.Sprintf("claim %s of the JWT (auth.jwt.groups-claim) %s",
			v.settings.GroupsClaim, reason))
	}
	out.identity = &access.Identity{Principal: principal, Groups: groups, Method: access.MethodJWT}
	return nil
}

// groupsOf parses a list of names, or a single name. A missing claim means no groups. reason describes an invalid
// claim.
func groupsOf(value any) (groups []string, reason string) {
	var list []any
	switch v := value.(type) {
	case nil:
		return nil, ""
	case string:
		list = []any{v}
	case []any:
		list = v
	default:
		return nil, "is not a list of names"
	}
	if len(list) > maxGroups {
		return nil, fmt.Sprintf("has %d groups, maximum is %d", len(list), maxGroups)
	}
	for _, one := range list {
		group, is := one.(string)
		if !is {
			return nil, "is not a list of names"
		}
		if reason := nameProblem(group); reason != "" {
			return nil, "has a group that " + reason
		}
		groups = append(groups, group)
	}
	return groups, ""
}

// claim returns the claim with the name path. If that claim does not exist, it returns the claim at the dotted path,
// or nil.
func claim(claims map[string]any, path string) any {
	if v, ok := claims[path]; ok || path == "" {
		return v
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		if deeper, is := claims[path[:i]].(map[string]any); is {
			return claim(deeper, path[i+1:])
		}
	}
	return nil
}

// instant parses a NumericDate: seconds since 1970 with an optional fraction, which is ignored. It returns false for
// a date before 1970 or after the year 9999.
func instant(n *json.Number) (time.Time, bool) {
	const latest = 253402300799 // the end of the year 9999
	seconds, err := n.Float64()
	if err != nil || seconds < 0 || seconds > latest {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}

// callKeys is the key set for one call. It stores the error of the key lookup.
type callKeys struct {
	keys    *keys
	algs    []jose.SignatureAlgorithm
	fetch   bool
	version uint64 // version of the keys that were used
	err     *Error
}

func (c *callKeys) VerifySignature(ctx context.Context, raw string) ([]byte, error) {
	payload, err := c.check(ctx, raw)
	if err != nil {
		c.err = err
		return nil, err
	}
	return payload, nil
}

func (c *callKeys) check(ctx context.Context, raw string) ([]byte, *Error) {
	jws, err := jose.ParseSignedCompact(raw, c.algs)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, newError(CheckForm, "token is neither a token of the pair nor a signed JWT")
	}
	protected := jws.Signatures[0].Protected
	found, version, err := c.keys.find(ctx, protected.KeyID, c.fetch)
	c.version = version
	none, unavailable := errors.AsType[*unavailableError](err)
	switch {
	case unavailable:
		return nil, unchecked(CheckUnavailable, codes.Unavailable, none.wait, "JWT not checked: "+
			"keys of the issuer are not available (auth.jwt): "+none.Error())
	case err != nil:
		return nil, newError(CheckKey, fmt.Sprintf("JWT is signed with key %.*q, which the issuer does not publish",
			quoted, protected.KeyID))
	}
	for i := range found {
		if found[i].Algorithm != "" && found[i].Algorithm != protected.Algorithm {
			continue // the key is for another algorithm
		}
		if payload, err := jws.Verify(&found[i]); err == nil {
			return payload, nil
		}
	}
	return nil, newError(CheckSignature, "signature of the JWT does not match a key of the issuer")
}
