// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"time"
)

// Setting describes one setting.
type Setting struct {
	// Key is its place in the file, with dots; Default what it is when it is not set; Usage what it means.
	Key, Default, Usage string
	// Flag and Variable are its other names: --listen, LOCKSTEP_LISTEN.
	Flag, Variable string
	// Type is how it is written: size, duration, percent, ratio, number, bool, list or string.
	Type string
	// Range is what is allowed; empty if the type says all.
	Range string
	// Running is the scope of a setting that can be changed while the nodes run, and empty for all others.
	Running Scope
}

// Settings lists all of them, in the order of the struct.
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

// ranges are what the checks of a configuration allow, by key: the checks themselves tell it. A size or duration that
// is not checked while it is 0 may be that, too.
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

// allowedWith is what checks tell of a configuration whose sizes and durations are all the same: each coordinator has
// checks of its own.
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

// span writes a duration without units that are 0: 10m, 24h.
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
