// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/config"
)

// Invalid backup settings are rejected at the start, and no error contains a secret.
func TestBackupLocations(t *testing.T) {
	for flag, want := range map[string]string{
		"--backup-path=s3://b":                              "bucket name",
		"--backup-path=s3://UPPER/x":                        "bucket name",
		"--backup-path=s3://bucket/a//b":                    `element ""`,
		"--backup-path=s3://bucket/../b":                    `element ".."`,
		"--backup-path=s3://PLANTED:PLANTED@bucket/x":       " @",
		"--backup-path=s3://bucket/x?region=eu":             "region",
		"--backup-path=ftp://bucket/x":                      "ftp://",
		"--wal-archive=file://host/x":                       `"host"`,
		"--wal-archive=file://":                             "no directory",
		"--backup-s3-endpoint=s3.example.com:9000":          "a URL",
		"--backup-s3-endpoint=https://PLANTED:PLANTED@host": "keys into",
		"--backup-s3-endpoint=https://host/bucket":          "a scheme",
		"--backup-s3-access-key-file=/x":                    "and secret-key-file",
		"--backup-s3-session-token-file=/x":                 "backup.s3.access-key-file",
		"--backup-s3-part-size=1MiB":                        "between",
		"--backup-s3-parallel=0":                            "1 and 64",
		"--backup-s3-retry-for=0s":                          "between",
	} {
		_, err := load(t, "", nil, []string{flag})
		require.ErrorIs(t, err, config.ErrInvalid, flag)
		require.NotContains(t, err.Error(), "PLANTED", flag)
		require.Contains(t, err.Error(), want, flag)
	}
	for _, flag := range []string{
		"--backup-path=/backup", "--backup-path=file:///backup", "--backup-path=s3://bucket",
		"--backup-path=s3://bucket/a/b/",
		"--wal-archive=relative/dir", "--wal-archive=s3://bucket/log", "--backup-s3-endpoint=http://127.0.0.1:9000",
	} {
		_, err := load(t, "", nil, []string{flag})
		require.NoError(t, err, flag)
	}
}

// LoadBackup reads the S3 settings with the same precedence of sources as Load, and ignores other settings.
func TestLoadBackup(t *testing.T) {
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	config.RegisterBackupFlags(flags)
	require.Nil(t, flags.Lookup("data-dir"))
	require.NoError(t, flags.Parse([]string{"--backup-s3-region=flag"}))
	c, err := config.LoadBackup("", []string{
		"LOCKSTEP_BACKUP_S3_REGION=env", "LOCKSTEP_BACKUP_S3_ENDPOINT=http://env:1", "LOCKSTEP_SYNC=ignored",
	}, flags)
	require.NoError(t, err)
	require.Equal(t, "flag", c.Region)
	require.Equal(t, "http://env:1", c.Endpoint)
	require.Equal(t, 4, c.Parallel)
	_, err = config.LoadBackup("", []string{"LOCKSTEP_BACKUP_S3_ENDPOINT=env"}, flags)
	require.ErrorIs(t, err, config.ErrInvalid)
}
