// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"slices"
)

// Setting describes one setting.
type Setting struct {
	// Key is the dotted path in the file. Default is the default value as text.
	Key, Default, Usage string
	// Flag and Variable are the flag and the environment variable, such as --listen and LOCKSTEP_LISTEN.
	Flag, Variable string
	// Type is the type of the value: size, duration, percent, ratio, number, bool, list or string.
	Type string
	// Range describes the valid values. It is empty if only the type or other settings restrict them.
	Range string
	// Running is the scope of a change at run time. It is empty if a change requires a restart.
	Running Scope
}

// Settings returns all settings in struct order.
func Settings() []Setting {
	c := Default()
	all := fields(&c)
	list := make([]Setting, 0, len(all))
	for _, f := range all {
		list = append(list, Setting{
			Key: f.key, Default: f.text(), Usage: f.usage, Running: f.run, Flag: "--" + flagName(f.key),
			Variable: envName(f.key), Type: f.typeName(), Range: f.allowed,
		})
	}
	return list
}

// Scope is the scope of a setting that can be changed at run time.
type Scope string

// Scopes of settings.
const (
	ScopePair Scope = "pair" // the value is the same on both nodes
	ScopeNode Scope = "node" // the value may differ between the nodes
)

// Running is a setting that can be changed at run time.
type Running struct {
	Key, Usage string
	Scope      Scope
}

// RunningSettings returns the settings that can be changed at run time, in struct order.
func RunningSettings() []Running {
	var list []Running
	for _, f := range fieldTable {
		if f.run != "" {
			list = append(list, Running{Key: f.key, Usage: f.usage, Scope: f.run})
		}
	}
	return list
}

// FindRunning returns the setting with the given key. The error wraps ErrInvalid if no such setting exists, or if it
// cannot be changed at run time.
func FindRunning(key string) (Running, error) {
	list := RunningSettings()
	if i := slices.IndexFunc(list, func(r Running) bool { return r.Key == key }); i >= 0 {
		return list[i], nil
	}
	names := make([]string, 0, len(list))
	for _, r := range list {
		names = append(names, r.Key)
	}
	if slices.ContainsFunc(fieldTable, func(f fieldInfo) bool { return f.key == key }) {
		return Running{}, fmt.Errorf("%w: %s cannot be changed at run time: set it in the configuration file and "+
			"run lockstep restart. To list the settings that can be changed, use lockstep settings list",
			ErrInvalid, key)
	}
	hint := cmp.Or(didYouMean(key, names),
		"; to list the settings that can be changed at run time, use lockstep settings list")
	return Running{}, fmt.Errorf("%w: %s is not a setting%s", ErrInvalid, key, hint)
}

// Text formats the value of a setting as for its flag. It returns "" for an unknown key.
func (c *Config) Text(key string) string {
	for _, info := range fieldTable {
		if info.key == key {
			return info.of(c).text()
		}
	}
	return ""
}

// With returns a copy of the settings with the given values. The error wraps ErrInvalid for a setting that is unknown
// or cannot be changed at run time, and for an invalid value or combination of values.
func (c *Config) With(values map[string]string) (Config, error) {
	next := *c
	all := fields(&next)
	for key, text := range values {
		if _, err := FindRunning(key); err != nil {
			return Config{}, err
		}
		i := slices.IndexFunc(all, func(f field) bool { return f.key == key })
		if err := all[i].set(text); err != nil {
			return Config{}, fmt.Errorf("%w: %s: %w", ErrInvalid, key, err)
		}
	}
	if err := next.Validate(); err != nil {
		return Config{}, err
	}
	return next, nil
}

// Alone reports whether the node is standalone.
func (c *Config) Alone() bool { return c.Coordinator.Type == CoordinatorNone }
