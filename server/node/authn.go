// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/server/auth/authn"
	"github.com/lockstep-mq/lockstep/server/config"
)

func (n *node) identify() (err error) {
	j := &n.cfg.Auth.JWT
	n.authn, err = authn.New(authn.Options{
		Tokens: n.rules.Token, Dial: n.environment.Dial, Logger: n.log,
		JWT: authn.JWT{
			Issuer: j.Issuer, Audience: j.Audience, KeysURL: j.KeysURL, KeysFile: j.KeysFile, KeysCA: j.KeysCA,
			PrincipalClaim: j.PrincipalClaim, GroupsClaim: j.GroupsClaim, Skew: j.ClockSkew.Std(),
		},
	})
	if err != nil {
		return fmt.Errorf("%w: auth.jwt: %w", config.ErrInvalid, err)
	}
	return nil
}

func (n *node) authFailures() map[string]uint64 {
	out := make(map[string]uint64)
	for check, count := range n.authn.Failures() {
		out[string(check)] = count
	}
	return out
}
