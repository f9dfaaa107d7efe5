// SPDX-License-Identifier: Apache-2.0

package config

// Setting describes one setting.
type Setting struct {
	// Key is the dotted path in the file.
	Key, Default, Usage string
	// Flag and Variable are the other names, such as --listen and LOCKSTEP_LISTEN.
	Flag, Variable string
	// Type is the notation: size, duration, percent, ratio, number, bool, list or string.
	Type string
	// Range of valid values; empty if only the type, or a relation to other settings, restricts them.
	Range string
	// Running is the scope of a setting that can be changed at run time, or empty.
	Running Scope
}

// Settings lists all settings in struct order.
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
