// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/url"
	"strings"
	"time"
)

// Auth configures authentication in addition to certificates of tls.ca and tokens of the pair.
type Auth struct {
	JWT JWT `key:"jwt"`
}

// JWT configures the accepted JSON Web Tokens.
type JWT struct {
	Issuer         string   `key:"issuer" usage:"issuer of the JWTs that are believed, exactly as their claim iss; empty: none is"`
	Audience       string   `key:"audience" usage:"audience that a JWT must be for: one of its claim aud"`
	KeysURL        string   `key:"jwks-url" usage:"where the issuer's keys are, a JSON Web Key Set; https, or http on this machine. Default, without jwks-file: where the issuer's discovery document says"`
	KeysFile       string   `key:"jwks-file" usage:"file with the issuer's keys, instead of a URL; it is read again when it changes"`
	KeysCA         string   `key:"jwks-ca" usage:"file with the authorities that the certificate of the issuer's server is checked against; default: the system's"`
	PrincipalClaim string   `key:"principal-claim" usage:"claim that names the principal; with dots, a claim in another one"`
	GroupsClaim    string   `key:"groups-claim" usage:"claim that lists the groups, such as groups or realm_access.roles; a token without it has none"`
	ClockSkew      Duration `key:"clock-skew" usage:"how far the issuer's clock may be from this node's: a JWT is believed for so long before and after its time"`
}

const maxClockSkew = 10 * time.Minute

func (c *Config) checkAuth(k *checker) {
	j := &c.Auth.JWT
	if j.Issuer == "" {
		for key, value := range map[string]string{
			"audience": j.Audience, "jwks-url": j.KeysURL, "jwks-file": j.KeysFile, "jwks-ca": j.KeysCA,
		} {
			if value != "" {
				k.fail("auth.jwt."+key, "it is set, but auth.jwt.issuer is not: no JWT would be believed")
			}
		}
		return
	}
	if j.Audience == "" {
		k.fail("auth.jwt.audience", "an audience is needed: without it, a token that the issuer has made for any other "+
			"service would be believed here")
	}
	if j.KeysURL != "" && j.KeysFile != "" {
		k.fail("auth.jwt.jwks-url", "either jwks-url or jwks-file can be set, not both")
	}
	if j.KeysURL != "" {
		checkURL(k, "auth.jwt.jwks-url", j.KeysURL)
	} else if j.KeysFile == "" {
		checkURL(k, "auth.jwt.issuer", j.Issuer)
	}
	if j.KeysCA != "" && j.KeysFile != "" {
		k.fail("auth.jwt.jwks-ca", "it is set, but the keys come from jwks-file: no server is asked")
	}
	if j.PrincipalClaim == "" {
		k.fail("auth.jwt.principal-claim", "a claim is needed, such as sub")
	}
	k.timeBetween("auth.jwt.clock-skew", j.ClockSkew, 0, maxClockSkew)
}

// checkURL requires https: keys fetched over an unencrypted network can be replaced in transit.
func checkURL(k *checker, key, value string) {
	u, err := url.Parse(value)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		k.fail(key, "%q is no URL such as https://id.example.com/keys", value)
	case u.Scheme == "https":
	case u.Scheme == "http" && (strings.EqualFold(u.Hostname(), "localhost") || isLoopback(u.Hostname())):
	default:
		k.fail(key, "%q is neither https nor on this machine: keys that come over an unencrypted network can be replaced "+
			"on the way", value)
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
