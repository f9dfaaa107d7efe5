// SPDX-License-Identifier: Apache-2.0

package secretfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
)

const (
	older = "0123456789abcdef-older"
	newer = "0123456789abcdef-newer"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// Each secret in the file is accepted, and similar strings are rejected.
func TestContains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "# of the pair\n\n"+newer+"\r\n  "+older+"  \n")
	f, err := secretfile.Open(path, nil)
	require.NoError(t, err)
	require.Equal(t, newer, f.First())
	for secret, want := range map[string]bool{
		newer: true, older: true,
		"": false, newer + "x": false, newer[:len(newer)-1]: false, " " + newer: false, strings.ToUpper(newer): false,
		newer + "\n" + older: false, "# of the pair": false, newer + "\x00": false,
	} {
		require.Equal(t, want, f.Contains(secret), "%q", secret)
	}
}

// Only the secrets of the file are accepted.
func FuzzContains(f *testing.F) {
	path := filepath.Join(f.TempDir(), "token")
	if err := os.WriteFile(path, []byte(newer+"\n"+older), 0o600); err != nil {
		f.Fatal(err)
	}
	file, err := secretfile.Open(path, nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", newer, older, newer + older, newer[1:], "\x00" + newer} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		require.Equal(t, secret == newer || secret == older, file.Contains(secret))
	})
}

// Files with an invalid secret are rejected, and the errors do not contain the secret.
func TestInvalidFiles(t *testing.T) {
	for content, want := range map[string]string{
		"":                                    "no secret",
		"# only a comment\n":                  "no secret",
		"planted-secret":                      "line 1: ",
		newer + "\nplanted-secret-1 and-more": "line 2: ",
		"planted-secret-\xff\xfe\xff":         "printable",
		strings.Repeat(newer+"\n", 17):        "16 secrets",
		strings.Repeat("x", 70<<10):           "65536 bytes",
	} {
		path := filepath.Join(t.TempDir(), "token")
		write(t, path, content)
		_, err := secretfile.Open(path, nil)
		require.ErrorIs(t, err, secretfile.ErrContent)
		require.Contains(t, err.Error(), want)
		require.NotContains(t, err.Error(), "planted")
	}
	_, err := secretfile.Open(filepath.Join(t.TempDir(), "none"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A changed file is read again, on request and automatically. Invalid content is not used, and is reported once.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, older)
	reported := make(chan error, 10)
	f, err := secretfile.Open(path, func(err error) { reported <- err })
	require.NoError(t, err)
	write(t, path, newer+"\n"+older)
	require.NoError(t, f.Reload())
	require.NoError(t, <-reported)
	require.True(t, f.Contains(newer))
	require.True(t, f.Contains(older))

	write(t, path, "")
	require.ErrorIs(t, f.Reload(), secretfile.ErrContent)
	require.ErrorIs(t, f.Reload(), secretfile.ErrContent)
	require.ErrorIs(t, f.Refused(), secretfile.ErrContent)
	require.ErrorIs(t, <-reported, secretfile.ErrContent)
	require.True(t, f.Contains(newer), "the previous secrets apply")
	require.Empty(t, reported)

	write(t, path, newer)
	require.Eventually(t, func() bool { return !f.Contains(older) }, time.Minute, 10*time.Millisecond,
		"the file is polled")
	require.NoError(t, <-reported)
	require.NoError(t, f.Refused())
}
