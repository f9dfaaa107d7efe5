// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	envPrefix      = "LOCKSTEP_"
	envAddr        = envPrefix + "ADDR"   // used by client commands
	envConfig      = envPrefix + "CONFIG" // path of the file, for `serve`
	flagStandalone = "standalone"
	keyCoordinator = "coordinator.type"
)

// ErrInvalid is wrapped by the errors of this package for invalid settings, except those of functions that parse a
// single value, such as ParseSize. The texts of the errors contain the keys and the problems. The errors of Load also
// contain the source of each value.
var ErrInvalid = errors.New("invalid configuration")

// RegisterFlags adds a flag for each setting and a hidden flag for each former name. It also adds `--standalone`,
// a short form of `--coordinator-type=none`.
func RegisterFlags(fs *pflag.FlagSet) {
	registerFlags(fs, "")
	fs.Bool(flagStandalone, false, "run a single node: no coordinator, standby or failover")
}

func registerFlags(fs *pflag.FlagSet, prefix string) {
	c := Default()
	for _, f := range fields(&c) {
		if !strings.HasPrefix(f.key, prefix) {
			continue
		}
		for _, key := range append([]string{f.key}, formerKeys(f.key)...) {
			flag := fs.VarPF(&flagValue{text: f.text(), typeName: f.typeName()}, flagName(key), "", f.usage)
			if f.typeName() == "bool" {
				flag.NoOptDefVal = "true" // the flag without a value means true
			}
			flag.Hidden = key != f.key
		}
	}
}

const backupPrefix = "backup.s3."

// RegisterBackupFlags adds the flags for access to the S3 server of backups. It is for commands that run without
// a node.
func RegisterBackupFlags(fs *pflag.FlagSet) { registerFlags(fs, backupPrefix) }

// LoadBackup is like Load, but reads only the settings for which RegisterBackupFlags adds flags.
func LoadBackup(path string, environ []string, flags *pflag.FlagSet) (BackupS3, error) {
	l, err := load(path, environ, flags)
	if err != nil {
		return BackupS3{}, err
	}
	problems := l.store(backupPrefix)
	var k checker
	l.config.checkBackup(&k)
	if err := invalid(append(problems, l.described(k.problems)...)); err != nil {
		return BackupS3{}, err
	}
	return l.config.Backup.S3, nil
}

// RegisterSiteFlags adds the flags of site.name, site.token-file, site.ca, data.dir and insecure, which LoadSite
// reads.
func RegisterSiteFlags(fs *pflag.FlagSet) {
	for _, key := range []string{"data.dir", "site.name", "site.token-file", "site.ca", "insecure"} {
		registerFlags(fs, key)
	}
}

// LoadSite is like Load, but reads only the settings for connections to the other site (site, tls and insecure),
// data.dir and wal.segment-bytes. If remote is not empty, it replaces site.remote.
func LoadSite(path string, environ []string, flags *pflag.FlagSet, remote []string) (Config, error) {
	l, err := load(path, environ, flags)
	if err != nil {
		return Config{}, err
	}
	var problems []string
	for _, prefix := range []string{"site.", "tls.", "insecure", "data.dir", "wal.segment-bytes"} {
		problems = append(problems, l.store(prefix)...)
	}
	if len(remote) > 0 {
		l.config.Site.Remote = remote
		l.sources["site.remote"] = "flag --from"
	}
	l.config.Listen = "" // the other site may use the default port
	var k checker
	l.config.checkSite(&k)
	if err := invalid(append(problems, l.described(k.problems)...)); err != nil {
		return Config{}, err
	}
	return l.config, nil
}

// flagValue stores the text of a flag.
type flagValue struct{ text, typeName string }

func (v *flagValue) String() string        { return v.text }
func (v *flagValue) Set(text string) error { v.text = text; return nil }
func (v *flagValue) Type() string          { return v.typeName }

// Load merges the defaults, the YAML file at path, the environment (in the format of os.Environ) and the flags. Later
// sources take precedence. An empty path means no file, and nil flags mean no flags. All errors wrap ErrInvalid.
// Former names of settings cause only warnings. An unknown LOCKSTEP_* variable also causes only a warning unless it
// resembles a setting.
func Load(path string, environ []string, flags *pflag.FlagSet) (Config, error) {
	l, err := load(path, environ, flags)
	if err != nil {
		return Config{}, err
	}
	return l.finish()
}

func load(path string, environ []string, flags *pflag.FlagSet) (*loader, error) {
	l := newLoader()
	if path != "" {
		if err := l.file(path); err != nil {
			return nil, err
		}
	}
	if err := l.environment(environ); err != nil {
		return nil, err
	}
	if flags != nil {
		if err := l.flags(flags); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// invalid returns an error that wraps ErrInvalid and lists all problems. It returns nil if none exist.
func invalid(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrInvalid, strings.Join(problems, "\n  "))
}

// loader merges the sources. For each setting, it stores the last value, not yet parsed, and the source of that
// value.
type loader struct {
	config  Config
	fields  []field
	keys    map[string]string // current key, by current key and by former name
	values  map[string]any
	sources map[string]string
}

func newLoader() *loader {
	l := &loader{config: Default(), keys: map[string]string{}, values: map[string]any{}, sources: map[string]string{}}
	l.fields = fields(&l.config)
	for _, f := range l.fields {
		l.keys[f.key] = f.key
		for _, former := range formerKeys(f.key) {
			l.keys[former] = f.key
		}
	}
	return l
}

func (l *loader) names() []string {
	names, former := make([]string, 0, len(l.keys)), []string(nil)
	for _, f := range l.fields {
		names, former = append(names, f.key), append(former, formerKeys(f.key)...)
	}
	return append(names, former...)
}

type layer struct {
	loader   *loader
	names    map[string]string // name used in this layer, by current key
	problems []string
}

func (l *loader) layer() *layer { return &layer{loader: l, names: map[string]string{}} }

// set stores a value. as is the name used in the layer, and current is the current name in the notation of the
// layer. source describes the location of the value.
func (y *layer) set(key string, raw any, as, current, source string) {
	if other, ok := y.names[key]; ok && other != as {
		former := as
		if as == current {
			former = other
		}
		y.fail("%s is also set as %s; remove %s", source, other, former)
		return
	}
	y.names[key], y.loader.values[key], y.loader.sources[key] = as, raw, source
	if as != current {
		y.loader.config.Warnings = append(y.loader.config.Warnings,
			fmt.Sprintf("%s was renamed to %s; the old name is removed in release %s", source, current, formerUntil))
	}
}

func (y *layer) fail(format string, args ...any) {
	y.problems = append(y.problems, fmt.Sprintf(format, args...))
}

func (l *loader) environment(environ []string) error {
	byName := make(map[string]string, len(l.keys))
	for _, name := range l.names() {
		byName[envName(name)] = name
	}
	y := l.layer()
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		if as, ok := byName[name]; ok {
			key := l.keys[as]
			y.set(key, value, name, envName(key), "environment variable "+name)
		} else if !slices.Contains(commandVariables(), name) {
			y.unknownVariable(name, byName)
		}
	}
	return invalid(y.problems)
}

// commandVariables returns the variables of client commands, which are not settings of a node.
func commandVariables() []string {
	return []string{
		envAddr, envConfig, envPrefix + "TOKEN", envPrefix + "TOKEN_FILE", envPrefix + "PROFILE", envPrefix + "PROFILES",
		envPrefix + "CLIENT_TLS_CA", envPrefix + "CLIENT_TLS_CERT", envPrefix + "CLIENT_TLS_KEY",
	}
}

// unknownVariable handles an unknown variable with the prefix of settings. A probable typo is an error, like an
// unknown key in the file. Other variables cause only a warning.
func (y *layer) unknownVariable(name string, known map[string]string) {
	names := make([]string, 0, len(known))
	for n := range known {
		names = append(names, strings.TrimPrefix(n, envPrefix))
	}
	slices.Sort(names)
	own := strings.TrimPrefix(name, envPrefix)
	text := "environment variable " + name + " is not a setting"
	if n := nearest(own, names); n != "" && distance(own, n) <= max(1, len(own)/4) {
		y.fail("%s; did you mean %s?", text, envName(y.loader.keys[known[envPrefix+n]]))
		return
	}
	y.loader.config.Warnings = append(y.loader.config.Warnings, text+" and is ignored")
}

func (l *loader) flags(fs *pflag.FlagSet) error {
	y := l.layer()
	for _, as := range l.names() {
		if f := fs.Lookup(flagName(as)); f != nil && f.Changed {
			key := l.keys[as]
			y.set(key, f.Value.String(), "--"+f.Name, "--"+flagName(key), "flag --"+f.Name)
		}
	}
	if f := fs.Lookup(flagStandalone); f != nil && f.Value.String() == "true" {
		l.values[keyCoordinator], l.sources[keyCoordinator] = CoordinatorNone, "flag --"+flagStandalone
	}
	return invalid(y.problems)
}

func (l *loader) finish() (Config, error) {
	problems := l.store("")
	if len(problems) == 0 {
		if err := l.config.complete(); err != nil {
			return Config{}, err
		}
		problems = l.described(l.config.problems())
	}
	if err := invalid(problems); err != nil {
		return Config{}, err
	}
	return l.config, nil
}

// store sets the fields of the Config with keys that begin with prefix to the merged values. It returns the values
// that are invalid.
func (l *loader) store(prefix string) (problems []string) {
	for _, f := range l.fields {
		raw, ok := l.values[f.key]
		if !ok || !strings.HasPrefix(f.key, prefix) {
			continue
		}
		if err := f.set(raw); err != nil {
			problems = append(problems, l.problem(f.key, err.Error()))
		}
	}
	return problems
}

func (l *loader) described(problems []problem) (texts []string) {
	for _, p := range problems {
		texts = append(texts, l.problem(p.key, p.text))
	}
	return texts
}

func (l *loader) problem(key, text string) string {
	source := l.sources[key]
	if source == "" {
		source = "default"
	}
	return fmt.Sprintf("%s (%s): %s", key, source, text)
}

func (c *Config) complete() error {
	if c.Node.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("%w: node.name is not set, and the host name cannot be read: %w", ErrInvalid, err)
		}
		c.Node.Name = host
	}
	if c.Coordinator.Type == CoordinatorEtcd && len(c.Coordinator.Etcd.Endpoints) == 0 {
		c.Coordinator.Etcd.Endpoints = []string{"127.0.0.1:2379"}
	}
	if path := c.Coordinator.Etcd.PasswordFile; path != "" && c.Coordinator.Etcd.Password == "" {
		secret, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%w: coordinator.etcd.password-file cannot be read: %w", ErrInvalid, err)
		}
		c.Coordinator.Etcd.Password = strings.TrimRight(string(secret), "\r\n")
	}
	return nil
}

func (l *loader) file(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	name := filepath.Base(path)
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return fmt.Errorf("%w: %s is not YAML: %w", ErrInvalid, name, err)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	y := l.layer()
	y.group(name, "", doc.Content[0])
	if err := invalid(y.problems); err != nil {
		return err
	}
	var whole map[string]any // rejects duplicate keys
	if err := doc.Decode(&whole); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
	}
	return nil
}

func (y *layer) group(file, prefix string, group *yaml.Node) {
	if group.Kind != yaml.MappingNode {
		name := strings.TrimSuffix(prefix, ".")
		if name == "" {
			name = "the file"
		}
		if group.Tag != "!!null" { // null is a group in which all settings are commented out
			y.fail("%s:%d: %s must be a group of settings", file, group.Line, name)
		}
		return
	}
	for i := 0; i+1 < len(group.Content); i += 2 {
		name, value := group.Content[i], group.Content[i+1]
		as, place := prefix+name.Value, fmt.Sprintf("%s:%d", file, name.Line)
		key, known := y.loader.keys[as]
		switch {
		case known:
			y.value(key, as, place, value)
		case as == removedGroup:
			y.loader.config.Warnings = append(y.loader.config.Warnings,
				fmt.Sprintf("%s: %s was removed and is ignored", place, as))
		case slices.Contains(y.loader.groups(), as):
			y.group(file, as+".", value)
		default:
			text := fmt.Sprintf("%s: %s is not a setting", place, as)
			n := y.loader.nearest(as)
			if value.Kind == yaml.MappingNode {
				n = nearest(as, y.loader.groups())
			}
			if n != "" {
				text += "; did you mean " + n + "?"
			}
			y.problems = append(y.problems, text)
		}
	}
}

func (y *layer) value(key, as, place string, value *yaml.Node) {
	var raw any
	if err := value.Decode(&raw); err != nil {
		y.fail("%s: %s: %s", place, as, err)
		return
	}
	y.set(key, raw, as, key, place+": "+as)
	y.loader.sources[key] = place
}

func (l *loader) groups() (names []string) {
	for key := range l.keys {
		for i, c := range key {
			if c == '.' && !slices.Contains(names, key[:i]) {
				names = append(names, key[:i])
			}
		}
	}
	slices.Sort(names)
	return names
}

func (l *loader) nearest(name string) string {
	return l.keys[nearest(name, l.names())]
}

// formerUntil is the release in which former names of settings are removed.
const formerUntil = "0.3.0"

// removedGroup is a group of settings that was removed after release 0.1.0. It is ignored, and causes a warning.
const removedGroup = "maintenance.autotune"

// formerKeys returns the former names of a setting, which are accepted with a warning. Until release 0.1.0, the
// transaction log and the process log shared one group of settings.
func formerKeys(key string) []string {
	switch key {
	case "wal.keep-bytes":
		return []string{"log.keep-bytes"}
	case "wal.segment-bytes":
		return []string{"log.segment-bytes"}
	case "wal.archive":
		return []string{"log.archive"}
	case "wal.archive-interval":
		return []string{"log.archive-interval"}
	case "wal.archive-hold-bytes":
		return []string{"log.archive-hold-bytes"}
	default:
		return nil
	}
}
