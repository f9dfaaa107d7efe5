// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/objectstore"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// locationFlags contains the flags for reading backups and archives without a node: access to S3, and decryption.
type locationFlags struct {
	env        *cli.Env
	flags      *pflag.FlagSet
	config     string
	identities []string
}

func (p *locationFlags) register(cmd *cobra.Command, env *cli.Env) {
	p.env, p.flags = env, cmd.Flags()
	cmd.Flags().StringVar(&p.config, "config", "", "node configuration file with backup.s3 settings for the S3 server")
	cmd.Flags().StringArrayVar(&p.identities, "identity", nil, "file with age secret keys (age-keygen) for decrypting an "+
		"encrypted backup or archive; may be repeated")
	config.RegisterBackupFlags(cmd.Flags())
}

func (p *locationFlags) opener() (objectstore.Opener, error) {
	s3, err := config.LoadBackup(p.config, p.env.Environ, p.flags)
	if err != nil {
		return objectstore.Opener{}, fmt.Errorf("settings of the S3 server: %w", err)
	}
	return objectstore.New(s3, 0, zap.NewNop()), nil
}

func (p *locationFlags) open(text string) (backup.Objects, error) {
	o, err := p.opener()
	if err != nil {
		return nil, err
	}
	location, err := o.Parse(text)
	if err != nil {
		return nil, cli.Usage("%v", err)
	}
	return location, nil
}

// openParent opens the location that contains a backup, and returns the name of the backup. The location is nil for a
// bucket without a prefix, which has no parent.
func (p *locationFlags) openParent(text string) (location backup.Objects, name string, err error) {
	at, err := backup.ParseLocation(text)
	if err != nil {
		return nil, "", cli.Usage("%v", err)
	}
	parent, name := backup.Location{Bucket: at.Bucket}, path.Base(at.Prefix)
	switch {
	case !at.IsS3():
		dir := filepath.Clean(at.Dir)
		parent, name = backup.Location{Dir: filepath.Dir(dir)}, filepath.Base(dir)
	case at.Prefix == "":
		return nil, "", nil
	case path.Dir(at.Prefix) != ".":
		parent.Prefix = path.Dir(at.Prefix)
	}
	o, err := p.opener()
	if err != nil {
		return nil, "", err
	}
	location, err = o.Open(parent)
	if err != nil {
		return nil, "", cli.Usage("%v", err)
	}
	return location, name, nil
}

func (p *locationFlags) unseal() (backup.Unsealer, error) {
	with, err := objectstore.ReadIdentities(p.identities...)
	if err != nil {
		return nil, cli.Usage("--identity: %v", err)
	}
	return with, nil
}

// checkThere rejects a path that is not a directory: a missing one would be listed as empty. It accepts an empty text
// and S3 locations.
func checkThere(text string) error {
	if text == "" {
		return nil
	}
	at, err := backup.ParseLocation(text)
	if err != nil {
		return cli.Usage("%v", err)
	}
	if at.IsS3() {
		return nil
	}
	switch s, err := vfs.OS().Stat(at.Dir); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory not found: %s", at.Dir)
	case err != nil:
		return fmt.Errorf("read the directory: %w", err)
	case !s.IsDir:
		return fmt.Errorf("%s is not a directory", at.Dir)
	}
	return nil
}

// onNodePath rejects a relative path, because each node has its own working directory.
func onNodePath(text string) error {
	if text == "" {
		return nil
	}
	at, err := backup.ParseLocation(text)
	if err != nil {
		return cli.Usage("--path: %v", err)
	}
	if !at.IsS3() && !filepath.IsAbs(at.Dir) {
		return cli.Usage("--path %q must be absolute: it is a directory on the node", text)
	}
	return nil
}
