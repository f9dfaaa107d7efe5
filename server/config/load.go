package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	envPrefix      = "LOCKSTEP_"
	envAddr        = envPrefix + "ADDR"   // of the commands that use a pair
	envConfig      = envPrefix + "CONFIG" // of `serve`: the file itself
	flagStandalone = "standalone"
	keyCoordinator = "coordinator.type"
)

// ErrInvalid is returned (wrapped, with the key, its place and what to do) when the settings cannot be used.
var ErrInvalid = errors.New("configuration is not valid")

// RegisterFlags adds one flag for each setting, and `--standalone`, which is short for `--coordinator-type=none`.
func RegisterFlags(fs *pflag.FlagSet) {
	c := Default()
	for _, f := range fields(&c) {
		flag := fs.VarPF(&flagValue{text: f.text(), typeName: f.typeName()}, f.flag(), "", f.usage)
		if f.typeName() == "bool" {
			flag.NoOptDefVal = "true" // the flag alone turns it on
		}
	}
	fs.Bool(flagStandalone, false, "run one node alone: no coordinator, no standby, no failover")
}

// flagValue keeps the text; Load parses it like a value from the file, so that all three give the same errors.
type flagValue struct{ text, typeName string }

func (v *flagValue) String() string        { return v.text }
func (v *flagValue) Set(text string) error { v.text = text; return nil }
func (v *flagValue) Type() string          { return v.typeName }

// Load reads the settings: defaults, then the YAML file at path (empty: none), then the environment (as from
// os.Environ), then the flags that were given (nil: none). It fails with ErrInvalid for a key that does not exist, a
// value that cannot be read, and values that do not go together. Unknown LOCKSTEP_* variables are only warned about:
// container platforms set some of their own accord.
func Load(path string, environ []string, flags *pflag.FlagSet) (Config, error) {
	l := newLoader()
	if path != "" {
		if err := l.file(path); err != nil {
			return Config{}, err
		}
	}
	if err := l.environment(environ); err != nil {
		return Config{}, err
	}
	if flags != nil {
		if err := l.flags(flags); err != nil {
			return Config{}, err
		}
	}
	return l.finish()
}

// loader gathers the layers and remembers where each value came from.
type loader struct {
	ko      *koanf.Koanf
	config  Config
	fields  []field
	keys    []string
	sources map[string]string
}

func newLoader() *loader {
	l := &loader{ko: koanf.New("."), config: Default(), sources: map[string]string{}}
	l.fields = fields(&l.config)
	for _, f := range l.fields {
		l.keys = append(l.keys, f.key)
	}
	return l
}

func (l *loader) file(path string) error {
	if err := l.ko.Load(file.Provider(path), &fileParser{loader: l, name: filepath.Base(path)}); err != nil {
		if errors.Is(err, ErrInvalid) {
			return err //nolint:wrapcheck // of fileParser, which names the file
		}
		return fmt.Errorf("%w: the file %s cannot be read: %w", ErrInvalid, path, err)
	}
	return nil
}

func (l *loader) environment(environ []string) error {
	byName := make(map[string]string, len(l.fields))
	for _, f := range l.fields {
		byName[f.env()] = f.key
	}
	var problems []string
	provider := env.Provider(".", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			key, ok := byName[name]
			if !ok {
				if name != envAddr && name != envConfig {
					problems = append(problems, l.strangeVariable(name, byName)...)
				}
				return "", nil
			}
			l.sources[key] = "environment variable " + name
			return key, value
		},
	})
	if err := l.ko.Load(provider, nil); err != nil {
		return fmt.Errorf("%w: the environment cannot be read: %w", ErrInvalid, err)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%w:\n  %s", ErrInvalid, strings.Join(problems, "\n  "))
	}
	return nil
}

// strangeVariable says what is wrong with a variable that begins like a setting and is none. One that is most like a
// mistyped setting is refused, as a key of the file is; others may belong to somebody else (Kubernetes makes some for a
// service called lockstep), and only deserve a warning.
func (l *loader) strangeVariable(name string, known map[string]string) (problems []string) {
	names := make([]string, 0, len(known))
	for n := range known {
		names = append(names, strings.TrimPrefix(n, envPrefix))
	}
	slices.Sort(names)
	own := strings.TrimPrefix(name, envPrefix)
	text := "environment variable " + name + " is no setting"
	if n := nearest(own, names); n != "" && distance(own, n) <= max(1, len(own)/4) {
		return []string{text + "; did you mean " + envPrefix + n + "?"}
	}
	l.config.Warnings = append(l.config.Warnings, text+" and is ignored")
	return nil
}

func (l *loader) flags(fs *pflag.FlagSet) error {
	byFlag := make(map[string]string, len(l.fields))
	for _, f := range l.fields {
		byFlag[f.flag()] = f.key
	}
	provider := posflag.ProviderWithFlag(fs, ".", nil, func(f *pflag.Flag) (string, any) {
		key := byFlag[f.Name]
		if key == "" || !f.Changed {
			return "", nil
		}
		l.sources[key] = "flag --" + f.Name
		return key, f.Value.String()
	})
	if err := l.ko.Load(provider, nil); err != nil {
		return fmt.Errorf("%w: the flags cannot be read: %w", ErrInvalid, err)
	}
	if f := fs.Lookup(flagStandalone); f != nil && f.Value.String() == "true" {
		if err := l.ko.Set(keyCoordinator, CoordinatorNone); err != nil {
			return fmt.Errorf("%w: --standalone cannot be applied: %w", ErrInvalid, err)
		}
		l.sources[keyCoordinator] = "flag --" + flagStandalone
	}
	return nil
}

// finish stores what was gathered into the struct, fills what follows from other settings, and validates.
func (l *loader) finish() (Config, error) {
	var problems []string
	for _, f := range l.fields {
		if !l.ko.Exists(f.key) {
			continue
		}
		if err := f.set(l.ko.Get(f.key)); err != nil {
			problems = append(problems, l.problem(f.key, err.Error()))
		}
	}
	if len(problems) == 0 {
		if err := l.config.complete(); err != nil {
			return Config{}, err
		}
		for _, p := range l.config.problems() {
			problems = append(problems, l.problem(p.key, p.text))
		}
	}
	if len(problems) > 0 {
		return Config{}, fmt.Errorf("%w:\n  %s", ErrInvalid, strings.Join(problems, "\n  "))
	}
	return l.config, nil
}

func (l *loader) problem(key, text string) string {
	source := l.sources[key]
	if source == "" {
		source = "default"
	}
	return fmt.Sprintf("%s (%s): %s", key, source, text)
}

// complete fills settings whose default depends on the machine or on other settings.
func (c *Config) complete() error {
	if c.Node.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("%w: node.name is not set and the host's name cannot be read: %w", ErrInvalid, err)
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

// fileParser is koanf's parser of one YAML file: it refuses keys that do not exist and notes the lines.
type fileParser struct {
	loader *loader
	name   string
}

// Marshal is part of koanf's interface; settings are only read.
func (p *fileParser) Marshal(map[string]any) ([]byte, error) {
	return nil, errors.New("settings are not written")
}

// Unmarshal reads the file.
func (p *fileParser) Unmarshal(content []byte) (map[string]any, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, fmt.Errorf("%w: %s is not YAML: %w", ErrInvalid, p.name, err)
	}
	if len(doc.Content) == 0 {
		return map[string]any{}, nil
	}
	if problems := p.walk("", doc.Content[0], nil); len(problems) > 0 {
		return nil, fmt.Errorf("%w:\n  %s", ErrInvalid, strings.Join(problems, "\n  "))
	}
	values := map[string]any{}
	if err := doc.Decode(&values); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, p.name, err)
	}
	return values, nil
}

// walk checks the keys of one group and of the groups in it.
func (p *fileParser) walk(prefix string, group *yaml.Node, problems []string) []string {
	if group.Kind != yaml.MappingNode {
		name := strings.TrimSuffix(prefix, ".")
		if name == "" {
			name = "the file"
		}
		if group.Tag == "!!null" {
			return problems // a group whose settings are all commented out
		}
		return append(problems, fmt.Sprintf("%s:%d: %s must be a group of settings", p.name, group.Line, name))
	}
	for i := 0; i+1 < len(group.Content); i += 2 {
		name, value := group.Content[i], group.Content[i+1]
		key := prefix + name.Value
		switch {
		case slices.Contains(p.loader.keys, key):
			p.loader.sources[key] = fmt.Sprintf("%s:%d", p.name, name.Line)
		case slices.ContainsFunc(p.loader.keys, func(k string) bool { return strings.HasPrefix(k, key+".") }):
			problems = p.walk(key+".", value, problems)
		default:
			text := fmt.Sprintf("%s:%d: %s is no setting", p.name, name.Line, key)
			if n := nearest(key, p.loader.keys); n != "" {
				text += "; did you mean " + n + "?"
			}
			problems = append(problems, text)
		}
	}
	return problems
}
