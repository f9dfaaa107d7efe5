// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"time"
)

// Setting describes one setting.
type Setting struct {
	// Key is the dotted path in the file, Default the default value, Usage the description.
	Key, Default, Usage string
	// Flag and Variable are the other names, such as --listen and LOCKSTEP_LISTEN.
	Flag, Variable string
	// Type is the notation: size, duration, percent, ratio, number, bool, list or string.
	Type string
	// Range of valid values; empty if only the type restricts them.
	Range string
	// Running is the scope of a setting that can be changed at run time, and empty for all others.
	Running Scope
}

// Settings lists all settings in struct order.
func Settings() []Setting {
	c, scopes, ranges := Default(), runningScopes(), ranges()
	all := fields(&c)
	list := make([]Setting, 0, len(all))
	for _, f := range all {
		list = append(list, Setting{
			Key: f.key, Default: f.text(), Usage: f.usage, Running: scopes[f.key], Flag: "--" + flagName(f.key),
			Variable: envName(f.key), Type: f.typeName(), Range: ranges[f.key],
		})
	}
	return list
}

// ranges returns the valid ranges by key, as recorded by the checks themselves. A size or duration that is not checked
// while it is 0 may also be 0.
func ranges() map[string]string {
	all, zero := allowedWith(1), allowedWith(0)
	c := Default()
	for _, f := range fields(&c) {
		_, always := zero[f.key]
		if _, known := all[f.key]; known && !always {
			all[f.key] = "0, or " + all[f.key]
		}
	}
	return all
}

// allowedWith returns the ranges recorded for a configuration with all sizes and durations set to amount: each
// coordinator type has its own checks.
func allowedWith(amount int64) map[string]string {
	k := checker{allowed: make(map[string]string)}
	for _, coordinator := range []string{CoordinatorRaft, CoordinatorEtcd} {
		c := Default()
		c.Coordinator.Type, c.Auth.JWT.Issuer = coordinator, "https://example.net"
		for _, f := range fields(&c) {
			switch v := f.value.Addr().Interface().(type) {
			case *Size:
				*v = Size(amount)
			case *Duration:
				*v = Duration(amount)
			}
		}
		c.check(&k)
	}
	return k.allowed
}

// span formats a duration without zero units: 10m, 24h.
func span(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
