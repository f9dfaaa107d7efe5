// SPDX-License-Identifier: Apache-2.0

// Package objectstore opens the locations of backups and log archives, which are directories or S3 buckets. It also
// implements the encryption of backups and archives.
package objectstore

import (
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/objectstore/s3"
	"github.com/lockstep-mq/lockstep/store/backup"
)

const memoryShare = 8 // buffers of an upload may use memory.budget divided by memoryShare

// Opener opens locations with the settings of a node.
type Opener struct {
	S3 s3.Options
}

// New creates an Opener from the settings of a node. memory is the memory budget of the node; 0 means no limit.
func New(c config.BackupS3, memory config.Size, log *zap.Logger) Opener {
	return Opener{S3: s3.Options{
		Endpoint: c.Endpoint, Region: c.Region, PathStyle: c.PathStyle, CA: c.CA, AccessKeyFile: c.AccessKeyFile,
		SecretKeyFile: c.SecretKeyFile, SessionTokenFile: c.SessionTokenFile, PartBytes: c.PartSize.Bytes(),
		Parallel: c.Parallel, MemoryBytes: memory.Bytes() / memoryShare, RetryFor: c.RetryFor.Std(), Logger: log,
	}}
}

// Open opens a location without sending a request. It returns s3.ErrOptions for invalid settings of the S3 server.
func (o Opener) Open(at backup.Location) (backup.Objects, error) {
	if !at.IsS3() {
		return backup.Directory(nil, at.Dir), nil
	}
	location, err := s3.Open(at, o.S3)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return location, nil
}

// Parse parses a path or URL and opens the location. It returns backup.ErrLocation for an invalid path or URL, and
// s3.ErrOptions for invalid settings of the S3 server.
func (o Opener) Parse(text string) (backup.Objects, error) {
	at, err := backup.ParseLocation(text)
	if err != nil {
		return nil, err
	}
	return o.Open(at)
}

// ArchiveFolder returns the location of a node's log archive. A directory is returned unchanged. In a bucket, the
// location is the folder with the node's name.
func ArchiveFolder(at backup.Location, node string) backup.Location {
	if !at.IsS3() {
		return at
	}
	return at.In(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, strings.TrimLeft(node, ".")))
}
