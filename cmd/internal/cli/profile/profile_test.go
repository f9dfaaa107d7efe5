// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/issuer"
)

// trusting returns settings of a node that accepts tokens of an issuer.
func trusting(i *issuer.Issuer) map[string]string {
	settings := maps.Clone(harness.SmallNodes())
	settings["auth.jwt.issuer"], settings["auth.jwt.audience"] = i.URL, issuer.Audience
	return settings
}

// A profile is created, used, displayed without its token, and deleted.
func TestLogin(t *testing.T) {
	i := issuer.New(t)
	p, c := clitest.StartNodesWith(t, true, trusting(i))
	addr := strings.Join(p.Addresses(), ",")
	c.Addr = ""
	file := filepath.Join(t.TempDir(), "sub", "profiles.yaml")
	c.Env = map[string]string{profiles.EnvFile: file}
	token := i.Token("alice", nil)
	secret := token[len(token)-20:]
	var reported strings.Builder
	run := func(stdin string, args ...string) (string, int) {
		stdout, stderr, code := c.Run(stdin, args...)
		reported.WriteString(stdout + stderr)
		return stdout + stderr, code
	}

	text, code := run("", "profile", "list")
	require.Equal(t, cli.ExitOK, code, text)
	require.Contains(t, text, "lockstep login")
	text, code = run("wrong\n", "login", "--addr", addr, "--token-stdin")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, text, "not stored")
	require.NoFileExists(t, file)

	text, code = run(token+"\n", "login", "first", "--addr", addr, "--token-stdin")
	require.Equal(t, cli.ExitOK, code, text)
	require.Contains(t, text, "as alice")
	info, err := os.Stat(file)
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	text, code = run("", "queue", "create", "q") // with the profile alone
	require.Equal(t, cli.ExitOK, code, text)

	// The token file is read again for each command, so that the token can be replaced.
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(i.Token("bob", nil)), 0o600))
	text, code = run("", "login", "second", "--addr", addr, "--token-file", tokenFile, "-o", "json")
	require.Equal(t, cli.ExitOK, code, text)
	require.NoError(t, os.WriteFile(tokenFile, []byte(i.Token("bob", issuer.Claims{
		"exp": time.Now().Add(-time.Hour).Unix(),
	})), 0o600))
	text, code = run("", "queue", "list")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, text, "expired")
	text, code = run("", "queue", "list", "--profile", "first")
	require.Equal(t, cli.ExitOK, code, text)
	text, code = run("", "queue", "list", "--token", token)
	require.Equal(t, cli.ExitOK, code, "the flag takes precedence over the profile: "+text)
	c.Env[cli.EnvToken] = "lsk_of_the_environment"
	text, code = run("", "queue", "list", "--profile", "first")
	require.Equal(t, cli.ExitError, code, "the environment takes precedence over the profile")
	require.NotContains(t, text, "of_the_environment")
	text, code = run("", "queue", "list", "--profile", "first", "--token", token)
	require.Equal(t, cli.ExitOK, code, "the flag takes precedence over the environment: "+text)
	delete(c.Env, cli.EnvToken)
	c.Env[profiles.EnvProfile] = "first"
	text, code = run("", "queue", "list")
	require.Equal(t, cli.ExitOK, code, text)
	delete(c.Env, profiles.EnvProfile)
	text, code = run("", "queue", "list", "--addr", addr)
	require.Equal(t, cli.ExitOK, code, "the current profile is not for other addresses: "+text)

	text, code = run("", "profile", "use", "first")
	require.Equal(t, cli.ExitOK, code, text)
	text, code = run("", "profile", "list")
	require.Equal(t, cli.ExitOK, code)
	require.Contains(t, text, "****"+token[len(token)-4:])
	require.Contains(t, text, tokenFile)
	text, code = run("", "profile", "show", "-o", "json")
	require.Equal(t, cli.ExitOK, code)
	require.Contains(t, text, `"current":true`)
	text, code = run("", "profile", "show", "third")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, text, "first, second")

	text, code = run("", "logout")
	require.Equal(t, cli.ExitOK, code, text)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(raw), secret)
	_, code = run("", "logout")
	require.Equal(t, cli.ExitError, code, "none is current")
	_, code = run("", "profile", "delete", "first")
	require.Equal(t, cli.ExitOK, code)
	require.NotContains(t, reported.String(), secret)
	require.NotContains(t, c.OK("--help"), "lsk_")
}

// Invalid names, two tokens, and files readable by other users are rejected.
func TestInvalidLogins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profiles.yaml")
	c := clitest.CLI{T: t, Addr: "127.0.0.1:1", Env: map[string]string{profiles.EnvFile: file}}
	for name, tt := range map[string]struct {
		args  []string
		stdin string
		code  int
		want  string
	}{
		"name": {args: []string{"login", "a/b"}, code: cli.ExitUsage, want: "invalid profile name"},
		"two tokens": {
			args: []string{"login", "--token", "a", "--token-file", "b"}, code: cli.ExitUsage, want: "token-file",
		},
		"two more":    {args: []string{"login", "--token", "a", "--token-stdin"}, code: cli.ExitUsage, want: "combined"},
		"empty input": {args: []string{"login", "--token-stdin"}, code: cli.ExitUsage, want: "standard input is empty"},
		"no node":     {args: []string{"login", "--token", "lsk_secret"}, code: cli.ExitError, want: "--no-verify"},
		"no file":     {args: []string{"login", "--token-file", "/nowhere"}, code: cli.ExitUsage, want: "/nowhere"},
		"plaintext": {
			args: []string{"login", "--addr", "192.0.2.1:7420", "--token", "lsk_secret"}, code: cli.ExitUsage,
			want: "unencrypted",
		},
		"two words": {
			args: []string{"login", "--token-stdin"}, stdin: "lsk_secret two", code: cli.ExitUsage, want: "byte 11",
		},
		"missing profile":          {args: []string{"status", "--profile", "x"}, code: cli.ExitUsage, want: "lockstep login"},
		"use of a missing profile": {args: []string{"profile", "use", "x"}, code: cli.ExitError, want: "profile not found"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := c.Run(tt.stdin, tt.args...)
			require.Equal(t, tt.code, code, stdout+stderr)
			require.Contains(t, stderr, tt.want)
			require.NotContains(t, stdout+stderr, "secret")
			require.NoFileExists(t, file)
		})
	}
	c.OK("login", "--token", "lsk_secret", "--no-verify")
	require.FileExists(t, file)
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Chmod(file, 0o644))
		_, stderr, code := c.Run("", "profile", "list")
		require.Equal(t, cli.ExitError, code)
		require.Contains(t, stderr, "chmod 600")
		require.NoError(t, os.Chmod(file, 0o600))
	}
	require.NoError(t, os.WriteFile(file, []byte("token: lsk_secret: x"), 0o600))
	_, stderr, code := c.Run("", "profile", "list")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, file)
	require.Contains(t, stderr, "YAML")
	require.NotContains(t, stderr, "secret")
	// Commands that need no profile do not read the file.
	c.OK("version")
	_, stderr, _ = c.Run("", "queue", "list")
	require.Contains(t, stderr, "connection refused")
}

// A login after a logout uses the addresses and TLS files of its profile, but not its token.
func TestLoginAfterLogout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profiles.yaml")
	c := clitest.CLI{T: t, Env: map[string]string{profiles.EnvFile: file}}
	stored := func(name string) profiles.Profile {
		f, err := profiles.Load(file)
		require.NoError(t, err)
		require.Equal(t, name, f.Current)
		return f.Profiles[name]
	}
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := profiles.Profile{Addresses: []string{"a:1", "b:1"}, CA: ca, Certificate: cert, Key: key}
	c.OK("login", "first", "--addr", "a:1,b:1", "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key, "--no-verify")
	require.Equal(t, first, stored("first"))
	c.OK("login", "second", "--addr", "c:1", "--token", "lsk_of_second", "--no-verify")
	c.OK("logout", "first")
	c.OK("login", "first", "--token", "lsk_new", "--no-verify")
	first.Token = "lsk_new"
	require.Equal(t, first, stored("first"))
	c.OK("login", "second", "--no-verify") // an old token is not verified and stored again
	require.Equal(t, profiles.Profile{Addresses: []string{"c:1"}}, stored("second"))
	c.OK("login", "first", "--profile", "second", "--token", "lsk_new", "--no-verify")
	require.Equal(t, profiles.Profile{Addresses: []string{"c:1"}, Token: "lsk_new"}, stored("first"))

	c.Env[cli.EnvAddr] = "d:1"
	c.OK("login", "first", "--no-verify")
	require.Equal(t, profiles.Profile{Addresses: []string{"d:1"}}, stored("first"))
	c.OK("login", "first", "--addr", "e:1", "--no-verify")
	require.Equal(t, profiles.Profile{Addresses: []string{"e:1"}}, stored("first"))
	delete(c.Env, cli.EnvAddr)
	c.OK("login", "new", "--no-verify")
	require.Equal(t, profiles.Profile{Addresses: strings.Split(cli.DefaultAddr, ",")}, stored("new"))
}

// A login without credentials fails if access rules exist, and none of them applies to an anonymous caller.
func TestAnonymousLogin(t *testing.T) {
	p, c := clitest.StartNodes(t, true)
	addr := strings.Join(p.Addresses(), ",")
	file := filepath.Join(t.TempDir(), "profiles.yaml")
	c.Addr, c.Env = "", map[string]string{profiles.EnvFile: file}
	c.OK("login", "open", "--addr", addr)
	c.OK("access", "grant", "anonymous", "operate")
	c.OK("login", "operator", "--addr", addr)
	c.OK("access", "revoke", "anonymous", "--lock-out")
	_, stderr, code := c.Run("", "login", "refused", "--addr", addr)
	require.Equal(t, cli.ExitError, code, stderr)
	require.Contains(t, stderr, client.ErrDenied.Error())
	f, err := profiles.Load(file)
	require.NoError(t, err)
	require.NotContains(t, f.Names(), "refused")
	require.Equal(t, "operator", f.Current)
}

// An operator at a terminal is prompted for the token.
func TestTokenPrompt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profiles.yaml")
	c := clitest.CLI{T: t, Addr: "127.0.0.1:1", Env: map[string]string{profiles.EnvFile: file}}
	_, stderr, code := c.Answering("lsk_0123456789012345678901234567\n", "login", "--no-verify")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, stderr, "Token (")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(raw), "lsk_0123456789012345678901234567")
	require.Contains(t, c.OK("profile", "show"), "lsk_****4567")
}

func TestMasked(t *testing.T) {
	for token, want := range map[string]string{
		"": "", "short": "****", "lsk_0123456789": "****", "lsk_01234567890123456789ABCD": "lsk_****ABCD",
		"eyJhbGciOi.eyJhbGciOi.signature": "****ture",
	} {
		require.Equal(t, want, profiles.Masked(token))
	}
}
