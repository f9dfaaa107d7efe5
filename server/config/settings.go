// SPDX-License-Identifier: Apache-2.0

package config

// Setting describes one setting.
type Setting struct {
	// Key is its place in the file, with dots; Default what it is when it is not set; Usage what it means.
	Key, Default, Usage string
	// Running is the scope of a setting that can be changed while the nodes run, and empty for all others.
	Running Scope
}

// Settings lists all of them, in the order of the struct.
func Settings() []Setting {
	c, scopes := Default(), runningScopes()
	all := fields(&c)
	list := make([]Setting, 0, len(all))
	for _, f := range all {
		list = append(list, Setting{Key: f.key, Default: f.text(), Usage: f.usage, Running: scopes[f.key]})
	}
	return list
}
