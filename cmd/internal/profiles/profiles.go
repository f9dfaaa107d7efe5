// SPDX-License-Identifier: Apache-2.0

// Package profiles stores addresses and credentials of pairs in a file of the user.
package profiles

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// EnvFile is the environment variable with the path of the profiles file. By default, the file is
	// lockstep/config.yaml in the user's configuration directory.
	EnvFile = "LOCKSTEP_PROFILES"
	// EnvProfile is the environment variable with the name of the profile to use.
	EnvProfile = "LOCKSTEP_PROFILE"
)

var (
	// ErrNoProfile is returned if no profile has the given name.
	ErrNoProfile = errors.New("profile not found")
	// ErrFile is returned if the profiles file cannot be read or written, or if a profile name is invalid.
	ErrFile = errors.New("profiles")
)

// Profile contains the addresses and credentials for a pair.
type Profile struct {
	// Addresses contains the addresses of the nodes, host:port.
	Addresses   []string `yaml:"addresses"`
	CA          string   `yaml:"ca,omitempty"`
	Certificate string   `yaml:"certificate,omitempty"`
	Key         string   `yaml:"key,omitempty"`
	// Token is the token itself; TokenFile is a file that contains it.
	Token     string `yaml:"token,omitempty"`
	TokenFile string `yaml:"token_file,omitempty"`
}

// File contains all profiles of a user.
type File struct {
	// Current is the name of the current profile; empty if none.
	Current  string             `yaml:"current,omitempty"`
	Profiles map[string]Profile `yaml:"profiles"`

	path string
}

// Path returns the path of the profiles file; empty if the environment does not define it.
func Path(lookup func(string) (string, bool)) string {
	if path, ok := lookup(EnvFile); ok && path != "" {
		return path
	}
	home := "HOME"
	if runtime.GOOS == "windows" {
		home = "AppData"
	}
	if dir, ok := lookup(home); !ok || dir == "" {
		return ""
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "lockstep", "config.yaml")
}

// Load reads the profiles file. A missing file, or an empty path, means no profiles. Except on Windows, Load also
// returns ErrFile if the file contains tokens and other users may access it.
func Load(path string) (*File, error) {
	f := &File{Profiles: make(map[string]Profile), path: path}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(f); err != nil && len(bytes.TrimSpace(raw)) > 0 {
		// The error of the decoder is omitted: it may contain a part of a token.
		return nil, fmt.Errorf("%w: %s is not a valid YAML profiles file; fix it, or delete it and log in again", ErrFile,
			path)
	}
	if f.Profiles == nil {
		f.Profiles = make(map[string]Profile)
	}
	if err := f.checkMode(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) checkMode() error {
	secret := false
	for _, p := range f.Profiles {
		secret = secret || p.Token != ""
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	const others = 0o077
	if secret && runtime.GOOS != "windows" && info.Mode().Perm()&others != 0 {
		return fmt.Errorf("%w: %s contains tokens and is accessible by others (mode %04o): chmod 600 %s; create new tokens "+
			"if others may have read it", ErrFile, f.path, info.Mode().Perm(), f.path)
	}
	return nil
}

// Save replaces the file atomically. Only the owner of the new file may read it.
func (f *File) Save() error {
	if f.path == "" {
		return fmt.Errorf("%w: unknown file location: set %s", ErrFile, EnvFile)
	}
	raw, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	temporary, err := os.CreateTemp(dir, ".config-*") // mode 0600
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	_, err = temporary.Write(raw)
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), f.path)
	}
	if err != nil {
		_ = os.Remove(temporary.Name()) // the first error is returned
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	return nil
}

// Path returns the path of the file.
func (f *File) Path() string { return f.path }

// Get returns a profile, or ErrNoProfile with the existing names.
func (f *File) Get(name string) (Profile, error) {
	p, ok := f.Profiles[name]
	if !ok {
		names := strings.Join(f.Names(), ", ")
		if names == "" {
			return p, fmt.Errorf("%w: %q; no profiles exist: create one with lockstep login", ErrNoProfile, name)
		}
		return p, fmt.Errorf("%w: %q; the profiles are %s", ErrNoProfile, name, names)
	}
	return p, nil
}

// Names returns the names of all profiles, sorted.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Profiles)) }

// CheckName returns ErrFile for an invalid profile name.
func CheckName(name string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`).MatchString(name) {
		return fmt.Errorf("%w: invalid profile name %q; use up to 63 letters, digits, dots, hyphens and underscores",
			ErrFile, name)
	}
	return nil
}

// Masked returns a token with all but the prefix "lsk_" and the last four characters masked. It masks a short token
// completely.
func Masked(token string) string {
	const shown, least = 4, 24
	switch {
	case token == "":
		return ""
	case len(token) < least:
		return "****"
	case strings.HasPrefix(token, "lsk_"):
		return "lsk_****" + token[len(token)-shown:]
	}
	return "****" + token[len(token)-shown:]
}
