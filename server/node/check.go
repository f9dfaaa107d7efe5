// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/objectstore"
)

// Check returns the reason why a node with these settings would not start, as far as the settings and the files with
// certificates, keys and secrets show. It opens neither the data directory nor a port.
func Check(cfg config.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if _, err := openSecrets(&cfg, zap.NewNop()); err != nil {
		return err
	}
	if _, err := objectstore.ParseRecipients(cfg.Backup.Recipients); err != nil {
		return fmt.Errorf("backup.recipients: %w", err)
	}
	return nil
}
