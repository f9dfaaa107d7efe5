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
		"--backup-path=s3://b":                              "invalid bucket name",
		"--backup-path=s3://UPPER/x":                        "invalid bucket name",
		"--backup-path=s3://bucket/a//b":                    `invalid prefix element ""`,
		"--backup-path=s3://bucket/../b":                    `invalid prefix element ".."`,
		"--backup-path=s3://PLANTED:PLANTED@bucket/x":       "contains an @",
		"--backup-path=s3://bucket/x?region=eu":             "endpoint and region are settings",
		"--backup-path=ftp://bucket/x":                      "begins with ftp://",
		"--wal-archive=file://host/x":                       `names machine "host"`,
		"--wal-archive=file://":                             "has no directory",
		"--backup-s3-endpoint=s3.example.com:9000":          "is not a URL such as",
		"--backup-s3-endpoint=https://PLANTED:PLANTED@host": "put keys into files",
		"--backup-s3-endpoint=https://host/bucket":          "has more than a scheme, a host and a port",
		"--backup-s3-access-key-file=/x":                    "must be set together",
		"--backup-s3-session-token-file=/x":                 "requires backup.s3.access-key-file",
		"--backup-s3-part-size=1MiB":                        "is not between",
		"--backup-s3-parallel=0":                            "is not between 1 and 64",
		"--backup-s3-retry-for=0s":                          "is not between",
	} {
		_, err := load(t, "", nil, []string{flag})
		require.ErrorIs(t, err, config.ErrInvalid, flag)
		require.NotContains(t, err.Error(), "PLANTED", flag)
		require.ErrorContains(t, err, want, flag)
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

// LoadBackup reads the S3 settings in the same order of precedence as Load, and ignores other settings.
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
