// SPDX-License-Identifier: Apache-2.0

package config

import "net/url"

// Auth configures authentication methods other than certificates issued by tls.ca and tokens of the pair.
type Auth struct {
	JWT JWT `key:"jwt"`
}

// JWT configures which JSON Web Tokens are accepted.
type JWT struct {
	Issuer         string   `key:"issuer" usage:"issuer of accepted JWTs, equal to their claim iss; if empty, JWTs are rejected"`
	Audience       string   `key:"audience" usage:"required audience of JWTs, contained in their claim aud"`
	KeysURL        string   `key:"jwks-url" usage:"URL of the issuer's JSON Web Key Set; https, or http on this machine. Default without jwks-file: from the issuer's discovery document"`
	KeysFile       string   `key:"jwks-file" usage:"file with the issuer's keys, instead of a URL; reloaded when it changes"`
	KeysCA         string   `key:"jwks-ca" usage:"CA file for the issuer's server certificate; default: the system's CAs"`
	PrincipalClaim string   `key:"principal-claim" usage:"claim with the principal; dots select nested claims"`
	GroupsClaim    string   `key:"groups-claim" usage:"claim with the list of groups, such as groups or realm_access.roles"`
	ClockSkew      Duration `key:"clock-skew" range:"0s to 10m" usage:"tolerated difference between the issuer's clock and this node's"`
}

func (c *Config) checkAuth(k *checker) {
	j := &c.Auth.JWT
	if j.Issuer == "" {
		for _, s := range []struct{ key, value string }{
			{"audience", j.Audience},
			{"jwks-url", j.KeysURL},
			{"jwks-file", j.KeysFile},
			{"jwks-ca", j.KeysCA},
		} {
			if s.value != "" {
				k.fail("auth.jwt."+s.key, "requires auth.jwt.issuer")
			}
		}
		return
	}
	if j.Audience == "" {
		k.fail("auth.jwt.audience", "an audience is required; without it, tokens for other services are accepted")
	}
	if j.KeysURL != "" && j.KeysFile != "" {
		k.fail("auth.jwt.jwks-url", "jwks-url and jwks-file are mutually exclusive")
	}
	if j.KeysURL != "" {
		checkURL(k, "auth.jwt.jwks-url", j.KeysURL)
	} else if j.KeysFile == "" {
		checkURL(k, "auth.jwt.issuer", j.Issuer)
	}
	if j.KeysCA != "" && j.KeysFile != "" {
		k.fail("auth.jwt.jwks-ca", "jwks-ca and jwks-file are mutually exclusive")
	}
	if j.PrincipalClaim == "" {
		k.fail("auth.jwt.principal-claim", "a claim is required, such as sub")
	}
}

// checkURL rejects values that are not URLs. It also rejects http URLs of other machines.
func checkURL(k *checker, key, value string) {
	u, err := url.Parse(value)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		k.fail(key, "%q is not a URL such as https://id.example.com/keys", value)
	case u.Scheme == "https":
	case u.Scheme == "http" && isLoopback(u.Hostname()):
	default:
		k.fail(key, "%q must be a URL with https, or with http on this machine: keys can be replaced in transit over "+
			"an unencrypted network", value)
	}
}
