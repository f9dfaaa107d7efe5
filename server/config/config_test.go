// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// load writes file to a configuration file and loads it with the given environment and flags.
func load(t *testing.T, file string, environ, args []string) (config.Config, error) {
	t.Helper()
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "node.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	config.RegisterFlags(fs)
	require.NoError(t, fs.Parse(args))
	return config.Load(path, environ, fs)
}

func TestDefaultsAreValid(t *testing.T) {
	c, err := load(t, "", nil, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:2379"}, c.Coordinator.Etcd.Endpoints)
	require.NotEmpty(t, c.Node.Name)
	require.NoError(t, c.Validate())
}

// Flags take precedence over environment variables, and environment variables over the file.
func TestPrecedence(t *testing.T) {
	file := `
node: {name: a}
data:
  dir: /from/file
listen: 127.0.0.1:1
memory:
  budget: 64MiB
page-size: 4096
wal:
  # keep-bytes: 1GiB
coordinator:
  etcd:
    endpoints: [one:1, two:2]
failover:
  timeout: 2s
`
	c, err := load(t, file, []string{"LOCKSTEP_DATA_DIR=/from/env", "LOCKSTEP_LISTEN=127.0.0.1:2", "PATH=/bin"},
		[]string{"--listen=127.0.0.1:3", "--failover-drop-timeout", "1500ms"})
	require.NoError(t, err)
	require.Equal(t, "a", c.Node.Name)
	require.Equal(t, "/from/env", c.Data.Dir)
	require.Equal(t, "127.0.0.1:3", c.Listen)
	require.Equal(t, config.Size(64<<20), c.Memory.Budget)
	require.Equal(t, config.Size(4096), c.PageSize)
	require.Equal(t, []string{"one:1", "two:2"}, c.Coordinator.Etcd.Endpoints)
	require.Equal(t, 2*time.Second, c.Failover.Timeout.Std())
	require.Equal(t, 1500*time.Millisecond, c.Failover.DropTimeout.Std())
	require.Equal(t, config.Default().WAL.KeepBytes, c.WAL.KeepBytes)
	require.Empty(t, c.Warnings)
}

// The flag --standalone disables the coordinator. Flags are merged with the file. Elements of lists in
// environment variables are separated by commas.
func TestFlagsAndLists(t *testing.T) {
	c, err := load(t, "", nil, []string{"--standalone"})
	require.NoError(t, err)
	require.Equal(t, config.CoordinatorNone, c.Coordinator.Type)

	c, err = load(t, "compact-on-startup: true\n", nil, []string{"--resize-on-startup"})
	require.NoError(t, err)
	require.True(t, c.Resize && c.Compact)

	c, err = load(t, "", []string{"LOCKSTEP_COORDINATOR_ETCD_ENDPOINTS=a:1, b:2"}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a:1", "b:2"}, c.Coordinator.Etcd.Endpoints)
}

// A removed setting is ignored with a warning.
func TestRemovedSetting(t *testing.T) {
	c, err := load(t, "maintenance:\n  autotune: {window: 23:00-01:30, min-gain: 15%}\n",
		[]string{"LOCKSTEP_MAINTENANCE_AUTOTUNE_WINDOW=23:00-01:30"}, nil)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{
		"node.yaml:2: maintenance.autotune was removed and is ignored",
		"environment variable LOCKSTEP_MAINTENANCE_AUTOTUNE_WINDOW is not a setting and is ignored",
	}, c.Warnings)
}

// The value off of the setting sync is a string, although YAML 1.1 parses an unquoted off as false.
func TestSyncOffIsText(t *testing.T) {
	c, err := load(t, "sync: off\n", nil, nil)
	require.NoError(t, err)
	require.Equal(t, "off", c.Sync)
}

// The password of the etcd user is the content of the password file without the final line break.
func TestPasswordFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte("s3cret\n"), 0o600))
	c, err := load(t, "", nil, []string{
		"--coordinator-etcd-username=lockstep",
		"--coordinator-etcd-password-file=" + path,
	})
	require.NoError(t, err)
	require.Equal(t, "s3cret", c.Coordinator.Etcd.Password)
}

// A variable with a mistyped name of a setting is an error. Other variables, such as those that Kubernetes
// defines for a service named lockstep, cause only a warning.
func TestUnknownVariable(t *testing.T) {
	for mistyped, meant := range map[string]string{
		"LOCKSTEP_DATA_DRI": "LOCKSTEP_DATA_DIR", "LOCKSTEP_LISTENN": "LOCKSTEP_LISTEN",
		"LOCKSTEP_MIN_INSYNC":    "LOCKSTEP_MIN_IN_SYNC",
		"LOCKSTEP_WAL_KEEPBYTES": "LOCKSTEP_WAL_KEEP_BYTES",
		"LOCKSTEP_LOG_KEEPBYTES": "LOCKSTEP_WAL_KEEP_BYTES",
	} {
		_, err := load(t, "", []string{mistyped + "=/x"}, nil)
		require.ErrorIs(t, err, config.ErrInvalid, mistyped)
		require.Contains(t, err.Error(), mistyped)
		require.Contains(t, err.Error(), meant+"?")
	}
	for _, other := range []string{
		"LOCKSTEP_PORT", "LOCKSTEP_SERVICE_HOST", "LOCKSTEP_SERVICE_PORT", "LOCKSTEP_PORT_7420_TCP",
		"LOCKSTEP_PORT_7420_TCP_ADDR", "LOCKSTEP_CHAOS",
	} {
		c, err := load(t, "", []string{other + "=x"}, nil)
		require.NoError(t, err, other)
		require.Len(t, c.Warnings, 1, other)
	}
}

// A renamed setting is also accepted under its former name, with a warning. This applies to the file, the environment
// and the flags. The precedence of sources does not depend on the name.
func TestRenamedSettings(t *testing.T) {
	file := "log:\n  level: warn\n  keep-bytes: 1MiB\n  segment-bytes: 2MiB\n  archive: /from/file\n"
	c, err := load(t, file, []string{"LOCKSTEP_LOG_SEGMENT_BYTES=3MiB", "LOCKSTEP_WAL_ARCHIVE=/from/env"},
		[]string{"--log-archive-hold-bytes=4MiB"})
	require.NoError(t, err)
	require.Equal(t, config.Size(1<<20), c.WAL.KeepBytes)
	require.Equal(t, config.Size(3<<20), c.WAL.SegmentBytes)
	require.Equal(t, config.Size(4<<20), c.WAL.ArchiveHold)
	require.Equal(t, "/from/env", c.WAL.Archive)
	require.Equal(t, "warn", c.Log.Level)
	require.Equal(t, []string{
		"node.yaml:3: log.keep-bytes was renamed to wal.keep-bytes; the old name is removed in release 0.3.0",
		"node.yaml:4: log.segment-bytes was renamed to wal.segment-bytes; the old name is removed in release 0.3.0",
		"node.yaml:5: log.archive was renamed to wal.archive; the old name is removed in release 0.3.0",
		"environment variable LOCKSTEP_LOG_SEGMENT_BYTES was renamed to LOCKSTEP_WAL_SEGMENT_BYTES; the old name is " +
			"removed in release 0.3.0",
		"flag --log-archive-hold-bytes was renamed to --wal-archive-hold-bytes; the old name is removed in release 0.3.0",
	}, c.Warnings)

	_, err = load(t, "log: {keep-bytes: 1MiB}\nwal: {keep-bytes: 1MiB}\n", nil, nil)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.Contains(t, err.Error(), "node.yaml:2:")
	require.Contains(t, err.Error(), "log.keep-bytes")
}

// An invalid setting is rejected. The error contains the key, the source of the value and the suggested action.
func TestInvalidSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		file    string
		environ []string
		args    []string
		want    []string
	}{
		"misspelt key": {
			file: "node:\n  nmae: a\n",
			want: []string{"node.yaml:2: node.nmae", "node.name?"},
		},
		"misspelt group": {
			file: "acess: {mode: open}\n",
			want: []string{"node.yaml:1: acess", " access?"},
		},
		"unknown group": {file: "sink:\n  a: 1\n", want: []string{"node.yaml:1: sink"}},
		"two unknown keys": {
			file: "synk: always\ndata: {dri: x}\n",
			want: []string{"synk", " sync?", " data.dir?"},
		},
		"value of a group": {file: "node: a\n", want: []string{"node.yaml:1: node", "group"}},
		"list for a value": {
			file: "listen: [a, b]\n",
			want: []string{"listen (node.yaml:1)", "single value"},
		},
		"not YAML":      {file: "a: [\n", want: []string{"not YAML"}},
		"duplicate key": {file: "sync: off\nsync: always\n", want: []string{"line 1"}},
		"duration without unit": {
			file: "failover: {timeout: 2}\n",
			want: []string{"failover.timeout (node.yaml:1)", "600ms, 5s, 1m or 7d"},
		},
		"size is not a number": {
			args: []string{"--memory-budget=much"},
			want: []string{"memory.budget (flag --memory-budget)", "such as 64MiB"},
		},
		"size overflow": {
			args: []string{"--memory-budget=9000000TiB"},
			want: []string{"is too large"},
		},
		"negative size": {args: []string{"--memory-budget=-1"}, want: []string{"not a size"}},
		"bad sync": {
			environ: []string{"LOCKSTEP_SYNC=allways"},
			want:    []string{"sync (environment variable LOCKSTEP_SYNC)", " always?"},
		},
		"page size": {
			args: []string{"--page-size=3000"},
			want: []string{"page-size (flag --page-size): 3000 ", "2KiB"},
		},
		"page size max": {
			args: []string{"--page-size-max=3000"},
			want: []string{"page-size-max (flag --page-size-max): 3000 "},
		},
		"invalid bool": {
			args: []string{"--resize-on-startup=maybe"},
			want: []string{`"maybe"`},
		},
		"invalid percentage": {
			args: []string{"--maintenance-background-share=much"},
			want: []string{`"much"`, "percentage"},
		},
		"share of 0%": {
			args: []string{"--maintenance-background-share=0%"},
			want: []string{"0% ", "1% and 100%"},
		},
		"rewrite rate": {
			args: []string{"--maintenance-rewrite-rate=1KiB"},
			want: []string{"1KiB ", " 2KiB and"},
		},
		"generations": {
			args: []string{"--backup-keep-generations=0"},
			want: []string{"1 and 10000"},
		},
		"page size too large": {args: []string{"--page-size=2MiB"}, want: []string{"2KiB and 1MiB"}},
		"listen address":      {args: []string{"--listen=here"}, want: []string{`"here"`, "host:port"}},
		"port out of range":   {args: []string{"--listen=:70000"}, want: []string{"port number"}},
		"advertise unspecified address": {
			args: []string{"--advertise=0.0.0.0:1"},
			want: []string{"reachable address"},
		},
		"raft listen on unspecified address": {
			args: []string{"--coordinator-type=raft", "--coordinator-raft-listen=0.0.0.0:1"},
			want: []string{"coordinator.raft.listen", "reachable address"},
		},
		"drop timeout": {
			args: []string{"--failover-drop-timeout=2s"},
			want: []string{"failover.timeout"},
		},
		"standalone with min-in-sync 2": {
			args: []string{"--standalone", "--min-in-sync=2"},
			want: []string{"refuses all writes"},
		},
		"certificate without key": {
			args: []string{"--coordinator-etcd-tls-cert=x"},
			want: []string{"coordinator.etcd.tls"},
		},
		"transaction too small": {
			args: []string{"--limits-transaction-bytes=64MiB", "--limits-message-bytes=64MiB"},
			want: []string{"limits.message-bytes"},
		},
		"JWT without issuer": {
			args: []string{"--auth-jwt-audience=lockstep", "--auth-jwt-jwks-file=keys.json", "--auth-jwt-jwks-ca=ca.pem"},
			want: []string{
				"auth.jwt.audience (flag", "auth.jwt.jwks-file (flag", "auth.jwt.jwks-ca (flag",
				"requires auth.jwt.issuer",
			},
		},
		"JWT without audience": {
			args: []string{"--auth-jwt-issuer=https://id.example.com"},
			want: []string{"auth.jwt.audience", "audience"},
		},
		"JWT with two sources of keys": {
			args: []string{
				"--auth-jwt-issuer=https://id.example.com", "--auth-jwt-audience=lockstep",
				"--auth-jwt-jwks-url=https://id.example.com/keys", "--auth-jwt-jwks-file=keys.json",
			},
			want: []string{"auth.jwt.jwks-url", "jwks-file"},
		},
		"JWT issuer over HTTP": {
			args: []string{"--auth-jwt-issuer=http://id.example.com", "--auth-jwt-audience=lockstep"},
			want: []string{"auth.jwt.issuer", "this machine"},
		},
		"JWT keys over HTTP": {
			args: []string{
				"--auth-jwt-issuer=https://id.example.com", "--auth-jwt-audience=lockstep",
				"--auth-jwt-jwks-url=http://10.0.0.1/keys",
			},
			want: []string{"auth.jwt.jwks-url", "this machine"},
		},
		"JWT issuer is not a URL": {
			args: []string{"--auth-jwt-issuer=realm", "--auth-jwt-audience=lockstep"},
			want: []string{"auth.jwt.issuer", "a URL"},
		},
		"JWT with a password in the URL": {
			args: []string{"--auth-jwt-issuer=https://me:secret@id.example.com", "--auth-jwt-audience=lockstep"},
			want: []string{"auth.jwt.issuer", "a URL"},
		},
		"JWT keys file with CA": {
			args: []string{
				"--auth-jwt-issuer=https://id.example.com", "--auth-jwt-audience=lockstep",
				"--auth-jwt-jwks-file=keys.json", "--auth-jwt-jwks-ca=ca.pem",
			},
			want: []string{"auth.jwt.jwks-ca", "mutually exclusive"},
		},
		"JWT without principal": {
			args: []string{
				"--auth-jwt-issuer=https://id.example.com", "--auth-jwt-audience=lockstep",
				"--auth-jwt-principal-claim=",
			},
			want: []string{"auth.jwt.principal-claim", "claim"},
		},
		"JWT clock skew too large": {
			args: []string{
				"--auth-jwt-issuer=https://id.example.com", "--auth-jwt-audience=lockstep", "--auth-jwt-clock-skew=1h",
			},
			want: []string{"auth.jwt.clock-skew"},
		},
		"fleet pair": {
			args: []string{"--fleet-pair=a/b"},
			want: []string{"fleet.pair (flag --fleet-pair)", "a/b"},
		},
		"fleet pair too long": {
			args: []string{"--fleet-pair=" + strings.Repeat("a", 64)},
			want: []string{"fleet.pair", "1 to 63"},
		},
		"fleet without pair": {
			args: []string{"--fleet-labels=zone=a"},
			want: []string{"fleet.pair (default)", "fleet.labels"},
		},
		"fleet endpoints": {
			args: []string{"--fleet-pair=a", "--fleet-endpoints=etcd"},
			want: []string{"fleet.endpoints", `"etcd"`, "host:port"},
		},
		"fleet without etcd": {
			args: []string{"--fleet-pair=a", "--coordinator-type=none"},
			want: []string{"fleet.endpoints (default)", "required"},
		},
		"fleet with a certificate without key": {
			args: []string{
				"--fleet-pair=a", "--coordinator-type=none", "--fleet-endpoints=etcd:1", "--coordinator-etcd-tls-cert=c",
			},
			want: []string{"coordinator.etcd.tls.cert"},
		},
		"fleet without prefix": {
			args: []string{"--fleet-pair=a", "--fleet-prefix=/"},
			want: []string{"fleet.prefix (flag --fleet-prefix)"},
		},
		"fleet in the prefix of the pair": {
			args: []string{"--fleet-pair=a", "--fleet-prefix=/lockstep/default/x"},
			want: []string{"fleet.prefix", "coordinator.etcd.prefix", "overlap"},
		},
		"prefix of the pair in the fleet": {
			args: []string{"--fleet-pair=a", "--fleet-prefix=lockstep"},
			want: []string{"fleet.prefix", "coordinator.etcd.prefix", "overlap"},
		},
		"fleet label": {
			args: []string{"--fleet-pair=a", "--fleet-labels=zone"},
			want: []string{"fleet.labels", `"zone"`, "key=value"},
		},
		"fleet label twice": {
			args: []string{"--fleet-pair=a", "--fleet-labels=zone=a,zone=b"},
			want: []string{"fleet.labels", "more than once"},
		},
		"fleet label too long": {
			args: []string{"--fleet-pair=a", "--fleet-labels=zone=" + strings.Repeat("a", 64)},
			want: []string{"fleet.labels", "63"},
		},
		"fleet and site name": {
			args: []string{"--fleet-pair=a", "--site-name=east"},
			want: []string{"fleet.pair (flag --fleet-pair)", "site.name", "fleet leave"},
		},
		"fleet and site": {
			args: []string{"--fleet-pair=a", "--site-name=east", "--site-remote=127.0.0.1:1"},
			want: []string{"fleet.pair (flag --fleet-pair)", "site.remote", "fleet leave"},
		},
		"site name": {
			args: []string{"--site-name=east/1"},
			want: []string{"site.name (flag --site-name)", "letters, digits, - and _"},
		},
		"site name too long": {
			args: []string{"--site-name=" + strings.Repeat("a", 65)},
			want: []string{"site.name", "1 to 64"},
		},
		"site without name": {
			args: []string{"--site-remote=127.0.0.1:1"},
			want: []string{"site.name (default)", "site.remote"},
		},
		"site address": {
			args: []string{"--site-name=east", "--site-remote=here,127.0.0.1:0"},
			want: []string{`"here"`, "host:port", "port 0"},
		},
		"site address twice": {
			args: []string{"--site-name=east", "--site-remote=127.0.0.1:1,127.0.0.1:2,127.0.0.1:1"},
			want: []string{"site.remote (flag --site-remote): 127.0.0.1:1 "},
		},
		"site is this node": {
			args: []string{"--site-name=east", "--site-remote=127.0.0.1:9", "--listen=127.0.0.1:9"},
			want: []string{"127.0.0.1:9 ", "this node"},
		},
		"site without TLS": {
			args: []string{"--site-name=east", "--site-remote=west:1", "--site-token-file=t"},
			want: []string{"site.remote", "TLS", "--insecure"},
		},
		"site without authentication": {
			args: []string{"--site-name=east", "--site-remote=127.0.0.1:1,west:1", "--site-ca=c"},
			want: []string{"site.token-file (default)", "authenticate", "--insecure"},
		},
		"site CA without site": {
			args: []string{"--site-ca=c"},
			want: []string{"site.ca (flag --site-ca)", "site.remote"},
		},
		"handshakes too small": {
			args: []string{"--limits-handshakes=1"},
			want: []string{"limits.handshakes"},
		},
		"invalid number": {
			args: []string{"--limits-queues=many"},
			want: []string{`"many"`},
		},
		"password file": {
			args: []string{"--coordinator-etcd-password-file=/not/there"},
			want: []string{"password-file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tc.file, tc.environ, tc.args)
			require.ErrorIs(t, err, config.ErrInvalid)
			for _, w := range tc.want {
				require.Contains(t, err.Error(), w)
			}
		})
	}
}

// Connections to another site use TLS and authentication, except on the loopback interface or with --insecure.
func TestSiteTLS(t *testing.T) {
	files := []string{"--tls-cert=c", "--tls-key=k", "--tls-ca=a"}
	east := []string{"--site-name=east", "--site-remote=west-a:1, west-b:1"}
	for name, tc := range map[string]struct {
		args []string
		tls  bool
		want tlsfiles.Files
	}{
		"certificates": {append(files, east...), true, tlsfiles.Files{Cert: "c", Key: "k", CA: "a"}},
		"CA": {
			append(files, append(east, "--site-ca=s")...), true,
			tlsfiles.Files{Cert: "c", Key: "k", CA: "s"},
		},
		"token":    {append(east, "--site-ca=s", "--site-token-file=t"), true, tlsfiles.Files{CA: "s"}},
		"insecure": {append(east, "--insecure"), false, tlsfiles.Files{}},
		"this host": {
			[]string{"--site-name=" + strings.Repeat("a", 64), "--site-remote=localhost:1"},
			false,
			tlsfiles.Files{},
		},
		"only named": {[]string{"--site-name=East_1-a", "--site-token-file=t"}, false, tlsfiles.Files{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, "", nil, tc.args)
			require.NoError(t, err)
			require.Equal(t, tc.tls, c.SiteTLS())
			require.Equal(t, tc.want, c.SiteFiles())
		})
	}
	c, err := load(t, "site: {name: east, remote: [\"127.0.0.1:1\", \"127.0.0.1:2\"], token-file: t, keep-bytes: 1MiB}\n",
		nil, nil)
	require.NoError(t, err)
	require.Equal(t, config.Site{
		Name: "east", Remote: []string{"127.0.0.1:1", "127.0.0.1:2"}, TokenFile: "t", KeepBytes: 1 << 20,
	}, c.Site)
	_, err = load(t, "site: {keep-bytes: 1MiB}\n", nil, nil)
	require.ErrorIs(t, err, config.ErrInvalid)
}

// Several problems are reported in the same order each time.
func TestProblemsAreOrdered(t *testing.T) {
	c := config.Default()
	c.Auth.JWT.Audience, c.Auth.JWT.KeysURL, c.Auth.JWT.KeysFile, c.Auth.JWT.KeysCA = "a", "b", "c", "d"
	c.Backup.Path, c.WAL.Archive = "ftp://a", "ftp://b"
	err := c.Validate()
	require.ErrorIs(t, err, config.ErrInvalid)
	for range 50 {
		require.Equal(t, err.Error(), c.Validate().Error())
	}
}

// deploy/node.yaml lists every setting. The commented-out values are the defaults.
func TestExampleFile(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/node.yaml")
	require.NoError(t, err)
	_, err = load(t, string(raw), nil, nil)
	require.NoError(t, err)

	setting := regexp.MustCompile(`(?m)^( *)# ([a-z-]+:( [^ ]+)?)$`)
	commentedOut := setting.ReplaceAllString(string(raw), "$1$2")
	commentedOut = regexp.MustCompile(`(?m)^ *(tls|ca|cert|key|client-auth|min-version|peer-names|peer-token-file|token-file|own|username|password-file|name|dir|listen|advertise|endpoints|prefix|type|path|window|archive|recipients|endpoint|region|access-key-file|secret-key-file|session-token-file|remote):.*$`).
		ReplaceAllString(commentedOut, "")
	got, err := load(t, commentedOut, nil, nil)
	require.NoError(t, err)
	want, err := load(t, "", nil, nil)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestMissingFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"), nil, nil)
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A size has an optional unit, and its text form is parsed as the same size.
func TestParseSize(t *testing.T) {
	for text, want := range map[string]config.Size{
		"0": 0, "1": 1, "2048": 2048, "2KiB": 2048, "2 kib": 2048, "64MiB": 64 << 20, "1GB": 1e9, "3b": 3,
		"1TiB": 1 << 40,
	} {
		got, err := config.ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := config.ParseSize(got.String())
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
}

// The text form of each valid size is parsed as the same size.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"64MiB", "", "b", "-1", "99999999999999999999", "1.5GiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := config.ParseSize(text)
		if err != nil {
			return
		}
		again, err := config.ParseSize(s.String())
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

// A port that other machines can reach requires TLS or --insecure.
func TestUnencryptedPorts(t *testing.T) {
	for _, args := range [][]string{
		{"--listen=0.0.0.0:7420"},
		{"--listen=:7420"},
		{"--listen=10.0.0.1:7420"},
		{"--listen=[::]:7420"},
		{"--listen=node-a:7420"},
		{"--listen=0.0.0.0:7420", "--standalone"},
		{"--metrics-listen=0.0.0.0:9420"},
		{"--console-listen=0.0.0.0:7480"},
		{"--metrics-listen=node-a:9420", "--tls-cert=c", "--tls-key=k", "--tls-ca=a"},
		{
			"--coordinator-type=raft", "--coordinator-raft-listen=10.0.0.1:7430",
			"--coordinator-raft-voters=10.0.0.1:7430,10.0.0.2:7430,10.0.0.3:7430",
		},
		{ // a container: other machines use the advertised address
			"--coordinator-type=raft", "--coordinator-raft-listen=0.0.0.0:7430",
			"--coordinator-raft-advertise=10.0.0.1:7430",
			"--coordinator-raft-voters=10.0.0.1:7430,10.0.0.2:7430,10.0.0.3:7430",
		},
	} {
		_, err := load(t, "", nil, args)
		require.ErrorIs(t, err, config.ErrInvalid, "%v", args)
		require.Contains(t, err.Error(), "without TLS", "%v", args)
		require.Contains(t, err.Error(), "--insecure", "%v", args)
		c, err := load(t, "", nil, append(args, "--insecure"))
		require.NoError(t, err, "%v", args)
		require.Len(t, c.Unencrypted(), 1)
	}
	secured := []string{"--tls-cert=c", "--tls-key=k", "--tls-ca=a"}
	for _, args := range [][]string{
		{"--listen=127.0.0.1:7420"},
		{"--listen=127.8.8.8:0", "--metrics-listen=[::1]:9420"},
		{"--listen=localhost:7420"},
		{"--listen=[::ffff:127.0.0.1]:7420"},
		append([]string{"--listen=0.0.0.0:7420"}, secured...),
		append([]string{"--listen=0.0.0.0:7420", "--metrics-listen=:9420", "--metrics-tls-own"}, secured...),
		{"--metrics-listen=:9420", "--metrics-tls-cert=c", "--metrics-tls-key=k"},
		{"--console-listen=:7480", "--console-tls-cert=c", "--console-tls-key=k"},
		append([]string{"--listen=0.0.0.0:7420", "--console-listen=:7480", "--console-tls-own"}, secured...),
		{"--listen=0.0.0.0:7420", "--tls-cert=c", "--tls-key=k", "--tls-client-auth=none", "--standalone"},
		{"--listen=0.0.0.0:7420", "--tls-cert=c", "--tls-key=k", "--tls-client-auth=none", "--peer-token-file=t"},
	} {
		c, err := load(t, "", nil, args)
		require.NoError(t, err, "%v", args)
		require.Empty(t, c.Unencrypted(), "%v", args)
	}
	for want, args := range map[string][]string{
		"other node": {
			"--listen=0.0.0.0:7420", "--tls-cert=c", "--tls-key=k", "--tls-client-auth=none",
		},
		"tls.peer-names (flag": {"--tls-peer-names=a"},
		"tls.min-version":      append([]string{"--tls-min-version=1.1"}, secured...),
		"metrics.tls.own":      {"--metrics-tls-own"},
		"metrics.tls.cert":     {"--metrics-tls-cert=c"},
		"metrics.tls.ca":       {"--metrics-tls-ca=c"},
	} {
		_, err := load(t, "", nil, args)
		require.ErrorIs(t, err, config.ErrInvalid, "%v", args)
		require.Contains(t, err.Error(), want, "%v", args)
	}
}

// The ranges returned by Settings match Validate. The limits of a range are valid, and values beyond the limits are
// not.
func TestRanges(t *testing.T) {
	known := map[string]string{}
	for _, s := range config.Settings() {
		require.NotEmpty(t, s.Usage, s.Key)
		require.NotEmpty(t, s.Type, s.Key)
		known[s.Key] = s.Range
		c := config.Default()
		require.Equal(t, s.Default, c.Text(s.Key))
	}
	for key, want := range map[string]string{
		"listen": "", "sync": "always, interval, off", "limits.queues": "1 to 1000000",
		"failover.timeout": "100ms to 10m", "scrub.rate": "0, or 64KiB to 1024TiB", "disk.low-watermark": "",
		"page-size": "2KiB to 1MiB, a multiple of 2KiB", "commit-delay": "0s to 100ms", "wal.keep-bytes": "0 to 1024TiB",
		"txn.prepared-timeout": "0, or 1s to 8760h", "coordinator.etcd.dial-timeout": "10ms to 1m",
		"limits.delivery-share": "1% to 100%", "auth.jwt.clock-skew": "0s to 10m",
		"limits.message-bytes":     "1KiB to " + config.Size(txn.MaxBodyBytes).String(),
		"limits.transaction-bytes": "129KiB to " + config.Size(txn.MaxTransactionBytes).String(),
	} {
		require.Equal(t, want, known[key], key)
	}
	for _, value := range []string{"0", "64KiB", "1024TiB"} {
		_, err := load(t, "", nil, []string{"--standalone", "--scrub-rate", value})
		require.NoError(t, err, value)
	}
	for _, value := range []string{"1KiB", "1025TiB"} {
		_, err := load(t, "", nil, []string{"--standalone", "--scrub-rate", value})
		require.ErrorIs(t, err, config.ErrInvalid, value)
		require.Contains(t, err.Error(), "64KiB", value)
	}
}

// Durations accept the unit d for days. Other unknown units are errors.
func TestDurationDays(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "0d": 0, "90m": 90 * time.Minute,
	} {
		d, err := config.ParseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d.Std(), text)
	}
	for _, wrong := range []string{"d", "7", "7days", "-7d", "7d7", "200000000000d"} {
		_, err := config.ParseDuration(wrong)
		require.Error(t, err, wrong)
	}
}

// LoadSite reads the settings for connections to the other site, and ignores other settings.
func TestLoadSite(t *testing.T) {
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	config.RegisterSiteFlags(flags)
	require.Nil(t, flags.Lookup("listen"))
	require.Nil(t, flags.Lookup("site-remote"))
	require.NoError(t, flags.Parse([]string{"--data-dir=d", "--site-ca=ca"}))
	environ := []string{
		"LOCKSTEP_SITE_NAME=west", "LOCKSTEP_SITE_REMOTE=east:1", "LOCKSTEP_SITE_TOKEN_FILE=t", "LOCKSTEP_SITE_CA=ignored",
		"LOCKSTEP_WAL_SEGMENT_BYTES=2MiB", "LOCKSTEP_PAGE_SIZE=ignored",
	}
	c, err := config.LoadSite("", environ, flags, nil)
	require.NoError(t, err)
	require.Equal(t, config.Site{Name: "west", Remote: []string{"east:1"}, TokenFile: "t", CA: "ca"}, c.Site)
	require.Equal(t, "d", c.Data.Dir)
	require.EqualValues(t, 2<<20, c.WAL.SegmentBytes)
	c, err = config.LoadSite("", environ, flags, []string{"east:2", "east:3"})
	require.NoError(t, err)
	require.Equal(t, []string{"east:2", "east:3"}, c.Site.Remote)
	for _, invalid := range [][]string{{"east:2", "east:2"}, {"east"}} {
		_, err = config.LoadSite("", environ, flags, invalid)
		require.ErrorIs(t, err, config.ErrInvalid)
	}
	_, err = config.LoadSite("", environ[:2], nil, nil) // with neither TLS nor a token
	require.ErrorIs(t, err, config.ErrInvalid)
	require.NoError(t, flags.Parse([]string{"--insecure"}))
	c, err = config.LoadSite("", environ[:2], flags, nil)
	require.NoError(t, err)
	require.True(t, c.Insecure)
}
